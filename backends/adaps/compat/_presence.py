"""Servers report to a scheduler that they are alive, through their rendezvous store."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from adaps import rendezvous
from adaps.errors import AdapsError, RendezvousError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

PERIOD = 1.0
"""Seconds between two reports that a server is alive."""
SILENCE = 30.0
"""Seconds without a report after which a server counts as dead."""
_END_KEY = "adapm/end"
_ARRIVED_KEY = "adapm/servers"
_LEFT_KEY = "adapm/ended"


class Presence:
    """The presence of one server: it arrives, reports that it is alive, and leaves.

    Attributes
    ----------
    rank : int
        Rank of the server, in the order of arrival.
    """

    def __init__(self, store: Store, servers: int) -> None:
        self._store = store
        self._servers = servers
        self.rank: int = store.add(_ARRIVED_KEY, 1) - 1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, name="adapm presence", daemon=True)
        if self.rank < servers:
            self._thread.start()

    def leave(self, reason: str = "") -> None:
        """Report that the server has ended, successfully or for a reason. A second call does nothing."""
        if self._over.is_set() or self.rank >= self._servers:
            return
        self._over.set()
        self._thread.join()
        if reason:
            self._store.set(_END_KEY, reason)
        elif self._store.add(_LEFT_KEY, 1) == self._servers:
            self._store.set(_END_KEY, "")

    def _live(self) -> None:
        while not self._over.wait(PERIOD):
            try:
                self._store.add(_life_key(self.rank), 1)
            except RuntimeError:  # the scheduler's process has ended, so nothing needs to be reported
                return


def await_servers(store: Store, servers: int, arrival: float) -> None:
    """Block until all servers have left.

    Raises
    ------
    RendezvousError
        If some servers have not arrived within `arrival` seconds.
    AdapsError
        If a server ends in another way, or stops reporting that it is alive.
    """
    started = time.monotonic()
    seen = [(0, started)] * servers
    while not rendezvous.wait_for(store, [_END_KEY], time.monotonic() + PERIOD):
        now = time.monotonic()
        arrived = store.add(_ARRIVED_KEY, 0)
        if arrived < servers and now - started > arrival:
            raise RendezvousError(f"{arrived} of {servers} servers came within {arrival:.0f} s")
        for rank in range(min(arrived, servers)):
            signs = store.add(_life_key(rank), 0)
            if signs != seen[rank][0] or seen[rank][1] == started:
                seen[rank] = signs, now
            elif now - seen[rank][1] > SILENCE:
                raise AdapsError(f"server {rank} is dead: it gave no sign of life for {SILENCE:.0f} s")
    reason = store.get(_END_KEY).decode()
    if reason:
        raise AdapsError(reason)


def _life_key(rank: int) -> str:
    return f"adapm/life/{rank}"
