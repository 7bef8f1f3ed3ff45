"""How old what a worker computes on can be."""

from __future__ import annotations

import adaps

STALENESS = 64
"""Steps, where nobody says otherwise."""


class StalenessLimit:
    """Bounds what a worker misses by a number of its own steps.

    Every half of the limit it asks the server to make visible what was changed until now, everywhere, and
    goes on; only when it is about to ask again it waits for the answer. So what any worker changed and the
    server knew `limit` steps ago is part of what this worker reads, and what this worker changed `limit`
    steps ago is known to the server.

    Parameters
    ----------
    worker : adaps.Worker
        Whose steps they are.
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
    """Makes all updates of all workers visible to all every so many of their steps.

    With 1, a step is one of all workers together: nobody hands gradients over before all have read what they
    compute on, and the next step begins when everybody's gradients are applied. So every worker has to make
    as many steps as the others, a worker that is closed apart.

    Parameters
    ----------
    worker : adaps.Worker
        Whose steps they are.
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

    def after_push(self) -> None:
        """A step has handed its gradients over."""
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            self._worker.wait_sync()
            self._worker.barrier()
            self._worker.wait_sync()
