"""Limits for the age of the values on which a worker computes."""

from __future__ import annotations

import adaps
from adaps.age_limit import request_steps


class StalenessLimit:
    """Limits the age of the values that a worker reads, in its own steps.

    After every half of the limit, the worker requests that all previous changes become visible everywhere. It
    then waits for its previous request. So this worker reads all changes that had reached the server `limit`
    steps ago, and its own changes of `limit` steps ago have reached the server. With a limit of 1, every step
    waits. Without a limit, it grows with the number of steps (`adaps.age_limit.default_limit`).
    """

    def __init__(self, worker: adaps.Worker, limit: int | None, alone: bool) -> None:
        self._worker = worker
        self._limit = limit
        self._alone = alone
        self._asked: int | None = None
        self.resume(0)

    def resume(self, steps: int) -> None:
        """Continue a training after a number of steps."""
        self.steps = steps
        """Number of steps so far."""
        self._requests = request_steps(self._limit)
        self._next = next(step for step in self._requests if step > steps)

    def step(self) -> None:
        """Count a step that has ended, and wait if the limit requires it."""
        self.steps += 1
        if self._alone or self.steps < self._next:
            return
        self._next = next(self._requests)
        if self._limit == 1:
            self._worker.wait_sync()
            return
        before, self._asked = self._asked, self._worker.wait_sync(asynchronous=True)
        if before is not None:
            self._worker.wait(before)


def check_limit(limit: int | None) -> None:
    """Raise ValueError unless `StalenessLimit` takes this limit."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"staleness is {limit!r}: it must be a number of steps, 1 or more")


class SynchronousSteps:
    """Makes all updates visible to all workers after every `every` steps.

    With 1, all workers step together. No worker pushes gradients before all workers have read their values,
    and the next step begins when the gradients of all workers are applied. So every worker has to make the
    same number of steps. The other workers do not wait for a closed worker. With 0, nothing is synchronized.
    """

    def __init__(self, worker: adaps.Worker, every: int, workers: int) -> None:
        self._worker = worker
        self._every = every if workers > 1 else 0
        self.steps = 0
        """Number of steps so far, since the model was wrapped."""

    def before_push(self) -> None:
        """Wait until all workers have computed their gradients, if they step together."""
        if self._every == 1:
            self._worker.barrier()

    def after_push(self) -> bool:
        """Count a step that has pushed its gradients; return whether all updates are visible now."""
        self.steps += 1
        synchronises = self._every > 0 and self.steps % self._every == 0
        if synchronises:
            self._worker.wait_sync()
            self._worker.barrier()
            self._worker.wait_sync()
        return synchronises
