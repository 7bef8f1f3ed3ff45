"""Limit of the age of the values that a worker reads, and when a worker requests newer ones."""

from __future__ import annotations

import math
from collections.abc import Iterator

LEAST, MOST = 2, 64
"""Range of the default limit, in steps."""


def default_limit(steps: int) -> int:
    """Return the default limit after a number of steps: half of its square root, within 2 and 64.

    Parameters change most in the first steps of a training, so old values then cost the most quality.
    Frequent exchanges cost time. Because the limit grows, both costs become small in a long training.

    Parameters
    ----------
    steps : int
        Steps of a worker so far.

    Returns
    -------
    int
        Limit in steps.
    """
    return min(max(LEAST, math.isqrt(steps) // 2), MOST)


def request_steps(limit: int | None) -> Iterator[int]:
    """Yield the numbers of the steps after which a worker requests that all changes become visible.

    A worker that then waits for its previous request reads no value that is older than the limit, because two
    requests are at most half of the limit apart.

    Parameters
    ----------
    limit : int or None
        Maximum age in steps, at least 1; None for `default_limit`.

    Yields
    ------
    int
        Number of a step, counted from 1.
    """
    step = 0
    while True:
        step += max(1, (default_limit(step) if limit is None else limit) // 2)
        yield step
