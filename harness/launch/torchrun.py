"""The launcher `torchrun`: the harness itself was started on every host, by torchrun, srun or mpirun.

Rank 0 plans, records and asks the others, the followers, to start their part of each run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from adabench.harness.errors import LauncherError
from adabench.harness.launch.agent import Follower, joined
from adabench.harness.launch.coordinator import ManyHosts, hello_here
from adabench.harness.launch.host_rendezvous import CONNECT_SECONDS, listen_where, meet, place_here
from adabench.harness.launch.launcher import Launcher
from adabench.harness.launch.local import Local
from adabench.harness.machine.interfaces import interface_of
from adabench.harness.study.cell import Cell

__all__ = ["LAUNCHER", "Torchrun"]


class Torchrun(ManyHosts):
    """The harness itself is started on every host, by torchrun, srun or mpirun; rank 0 asks the others."""

    name: ClassVar[str] = "torchrun"

    def __init__(
        self,
        listen: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        job: Sequence[str] = (),
    ) -> None:
        super().__init__(listen, say, job)
        self._place = place_here()
        self._local = Local()
        self._follower: Follower | None = None
        self._address, why = "127.0.0.1", ""
        if self._place is not None:
            self._address, why = listen_where(self._place, listen)
            # What runs here listens there, too.
            os.environ["ADAPS_LISTEN"] = self._address
            say(
                f"rank {self._place.rank} of {self._place.world_size} listens at {self._address} "
                f"({interface_of(self._address)}): {why}; --listen names another interface or address"
            )
        self._hello = hello_here(0 if self._place is None else self._place.rank, self._address)

    def __enter__(self) -> Launcher:
        if self._place is None:
            return self
        meeting = meet(self._place, self._address)
        if self._place.rank != 0:
            assert self._hello is not None
            self._follower = joined(meeting.leader, meeting.secret, self._hello, "rank 0")
            return self
        assert meeting.listener is not None
        deadline = time.monotonic() + CONNECT_SECONDS

        def look(missing: set[int]) -> None:
            if time.monotonic() > deadline:
                ranks = ", ".join(map(str, sorted(missing)))
                raise LauncherError(f"rank {ranks} met the others and did not connect")

        try:
            self._welcome_all(meeting.listener, meeting.secret, range(1, self._place.world_size), look)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def is_agent(self) -> bool:
        return self._follower is not None

    def serve(self, plan: Callable[[], list[Cell]], stopped: Callable[[], bool]) -> bool:
        assert self._follower is not None
        return self._follower.serve(plan, stopped)

    def _end(self, reason: str | None) -> None:
        super()._end(reason)
        if self._follower is not None:
            self._follower.close()
            self._follower = None


LAUNCHER = Torchrun
