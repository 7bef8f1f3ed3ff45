"""All workers of all nodes, as one of them sees them while they write or restore together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from adaps import _core
from adaps.errors import CheckpointError

__all__ = ["FAILURES", "Collective", "explained"]

_T = TypeVar("_T")

FAILURES = (CheckpointError, OSError, MemoryError)
"""What a node may meet that the others have to be told."""


class Collective:
    """What workers do together. Each method is collective: every worker of every node calls it.

    Parameters
    ----------
    core : adaps._core.Node
        The node.
    rank, worker : int
        Which worker this is.
    """

    def __init__(self, core: _core.Node, rank: int, worker: int) -> None:
        self._core = core
        self._rank = rank
        self.kv = core.worker(worker)
        self.leads_node = worker == 0
        self.leads_all = worker == 0 and rank == 0

    @contextlib.contextmanager
    def nothing_moves(self) -> Iterator[None]:
        """All writes of all workers are applied, and every key stays where it is."""
        self.kv.waitall()
        self.kv.wait_sync()
        self.kv.barrier()  # no worker is in another call now, so none waits for a key that cannot move
        if self.leads_node:
            _core.freeze(self._core)
        try:
            self.make_visible()
            yield
        finally:
            if self.leads_node and not self._core.closed:
                _core.thaw(self._core)

    def make_visible(self) -> None:
        """Whoever reads from now on reads what was written before."""
        self.kv.wait_sync()
        self.kv.barrier()
        self.kv.wait_sync()

    def act(self, what: str, action: Callable[[], _T]) -> _T:
        """What `action` gives; if it fails for any worker, every one raises CheckpointError."""
        failure: CheckpointError | OSError | MemoryError | None = None
        try:
            result = action()
        except FAILURES as error:
            failure = error
        failed_rank = self.kv.agree(failure is None)
        if isinstance(failure, CheckpointError):
            raise failure
        if failure is not None:
            raise explained(self._rank, what, failure) from failure
        if failed_rank is not None:
            raise CheckpointError(f"rank {failed_rank} could not {what}: its own exception says why")
        return result

    def all_say(self, yes: bool) -> bool:
        """Whether all workers do."""
        return self.kv.agree(yes) is None


def explained(rank: int, what: str, failure: CheckpointError | OSError | MemoryError) -> CheckpointError:
    """A failure as one sentence."""
    if isinstance(failure, CheckpointError):
        return failure
    where, reason = "", "there is not enough memory"
    if isinstance(failure, OSError):
        where = "" if failure.filename is None else f"{failure.filename}: "
        reason = failure.strerror or str(failure)
    return CheckpointError(f"rank {rank} could not {what}: {where}{reason}")
