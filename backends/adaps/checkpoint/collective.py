"""Steps that all workers of all nodes take together while they write or restore."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from adaps import _core
from adaps.errors import CheckpointError

__all__ = ["Collective", "explained"]

_T = TypeVar("_T")


class Collective:
    """The collective steps of one worker. Every worker of every node calls each method.

    Parameters
    ----------
    core : adaps._core.Node
        Node of the worker.
    rank, worker : int
        Rank of the node, and index of the worker.
    """

    def __init__(self, core: _core.Node, rank: int, worker: int) -> None:
        self._core = core
        self._rank = rank
        self.kv = core.worker(worker)
        self.is_node_primary = worker == 0
        self.is_primary = worker == 0 and rank == 0

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Apply all writes of all workers, and keep every key on its node during the body."""
        self.kv.waitall()
        self.kv.wait_sync()
        self.kv.barrier()  # no worker is in another call now, so none waits for a key that cannot move
        if self.is_node_primary:
            _core.freeze(self._core)
        try:
            self.make_visible()
            yield
        finally:
            if self.is_node_primary and not self._core.closed:
                _core.thaw(self._core)

    def make_visible(self) -> None:
        """Make earlier writes visible to all later reads."""
        self.kv.wait_sync()
        self.kv.barrier()
        self.kv.wait_sync()

    def run(self, what: str, action: Callable[[], _T]) -> _T:
        """Return the result of `action`. If it fails for any worker, every worker raises CheckpointError."""
        failure: CheckpointError | None = None
        try:
            result = action()
        except Exception as error:  # of any kind, because the other workers wait for the outcome
            failure = explained(self._rank, what, error)
        failed_rank = self.kv.agree(failure is None)
        if failure is not None:
            raise failure
        if failed_rank is not None:
            raise CheckpointError(f"rank {failed_rank} could not {what}; its exception gives the reason")
        return result

    def all_agree(self, yes: bool) -> bool:
        """Whether `yes` is true for all workers."""
        return self.kv.agree(yes) is None


def explained(rank: int, what: str, failure: Exception) -> CheckpointError:
    """Return the failure of an action as a CheckpointError with one sentence."""
    if isinstance(failure, CheckpointError):
        return failure
    where, reason = "", f"{type(failure).__name__}: {failure}"
    if isinstance(failure, OSError):
        where = "" if failure.filename is None else f"{failure.filename}: "
        reason = failure.strerror or str(failure)
    elif isinstance(failure, MemoryError):
        reason = "there is not enough memory"
    error = CheckpointError(f"rank {rank} could not {what}: {where}{reason}")
    error.__cause__ = failure
    return error
