"""The launcher `torchrun`: the harness itself was started on every host, by torchrun, srun or mpirun.

Rank 0 plans, records and coordinates; the other ranks are its agents.
"""

import os
import time
from collections.abc import Callable
from typing import ClassVar

from adabench.harness.errors import LauncherError
from adabench.harness.launch.agent import Agent, connect_agent
from adabench.harness.launch.coordinator import Coordinator, introduction
from adabench.harness.launch.host_rendezvous import CONNECT_SECONDS, listen_where, meet, place_here
from adabench.harness.launch.launcher import Launcher, LauncherOptions
from adabench.harness.launch.local import Local
from adabench.harness.machine.interfaces import interface_of
from adabench.harness.study.cell import Cell


class Torchrun(Coordinator):
    """The harness itself is started on every host, by torchrun, srun or mpirun; rank 0 coordinates."""

    name: ClassVar[str] = "torchrun"

    def __init__(self, options: LauncherOptions | None = None) -> None:
        super().__init__(options)
        self._place = place_here()
        self._local = Local()
        self._agent: Agent | None = None
        self._deadline = 0.0
        self._address, why = "127.0.0.1", ""
        if self._place is not None:
            self._address, why = listen_where(self._place, self.options.listen)
            os.environ["ADAPS_LISTEN"] = self._address  # The nodes of this host also listen there.
            self.options.say(
                f"rank {self._place.rank} of {self._place.world_size} listens at {self._address} "
                f"({interface_of(self._address)}): {why}; --listen names another interface or address"
            )
        self._hello = introduction(0 if self._place is None else self._place.rank, self._address)

    def __enter__(self) -> Launcher:
        if self._place is None:
            return self
        coordinator, secret, listener = meet(self._place, self._address)
        if listener is None:
            assert self._hello is not None
            self._agent = connect_agent(coordinator, secret, self._hello, "rank 0")
            return self
        self._deadline = time.monotonic() + CONNECT_SECONDS
        try:
            self._accept(listener, secret, range(1, self._place.world_size))
        except BaseException:
            self.close()
            raise
        return self

    def check_missing(self, missing: set[int]) -> None:
        if time.monotonic() > self._deadline:
            ranks = ", ".join(map(str, sorted(missing)))
            raise LauncherError(f"rank {ranks} found the other ranks but did not connect")

    @property
    def is_agent(self) -> bool:
        return self._agent is not None

    def serve(self, plan: Callable[[], list[Cell]], stopped: Callable[[], bool]) -> bool:
        assert self._agent is not None
        return self._agent.serve(plan, stopped)

    def _end(self, reason: str | None) -> None:
        super()._end(reason)
        if self._agent is not None:
            self._agent.close()
            self._agent = None


LAUNCHER = Torchrun
