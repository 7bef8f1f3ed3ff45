"""Limits of how old the values are that a worker computes on."""

from __future__ import annotations

import adaps

STALENESS = 64
"""Default limit, in steps."""


class StalenessLimit:
    """Limits the age of the values that a worker reads, in its own steps.

    Every half of the limit it requests that the server make all previous changes visible everywhere. It waits
    for the answer only before the next request. So this worker reads all changes that had reached the server
    `limit` steps ago, and its own changes of `limit` steps ago have reached the server.

    Parameters
    ----------
    worker : adaps.Worker
        The worker that steps.
    limit : int
        In steps, at least 1. With 1, every step waits.
    alone : bool
        Whether there is no other node, so that nothing can be old.
    """

    def __init__(self, worker: adaps.Worker, limit: int, alone: bool) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"staleness is {limit!r}: it must be a number of steps, 1 or more")
        self._worker = worker
        self._period = max(1, limit // 2)
        self._at_once = limit == 1
        self._alone = alone
        self._steps = 0
        self._asked: int | None = None

    def step(self) -> None:
        """A step is done."""
        self._steps += 1
        if self._alone or self._steps % self._period:
            return
        if self._asked is not None:
            self._worker.wait(self._asked)
        asked = self._worker.wait_sync(asynchronous=True)
        assert asked is not None
        self._asked = asked
        if self._at_once:
            self._worker.wait(self._asked)


class SynchronousSteps:
    """Makes all updates visible to all workers after every `every` steps.

    With 1, all workers step together: no worker hands gradients over before all have read their values, and
    the next step begins when the gradients of all workers are applied. So every worker has to make the same
    number of steps; only a closed worker is not waited for.

    Parameters
    ----------
    worker : adaps.Worker
        The worker that steps.
    every : int
        In steps; 0 for never.
    workers : int
        How many train together.
    """

    def __init__(self, worker: adaps.Worker, every: int, workers: int) -> None:
        self._worker = worker
        self._every = every if workers > 1 else 0
        self._steps = 0

    def before_push(self) -> None:
        """A step has computed its gradients."""
        if self._every == 1:
            self._worker.barrier()

    def after_push(self) -> bool:
        """A step has handed its gradients over; returns whether all updates are visible now."""
        self._steps += 1
        synchronises = self._every > 0 and self._steps % self._every == 0
        if synchronises:
            self._worker.wait_sync()
            self._worker.barrier()
            self._worker.wait_sync()
        return synchronises
