"""The cost of drawing rows of a table, by each scheme and from each distribution, on one thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import adaps
from adaps.sampling import RowDistribution

if TYPE_CHECKING:
    from adaps._typing import SamplingScheme
    from tests.perf.goals import Goal, Limit

ROWS = 1_000_000
SIZE = 256
SAMPLES = 800
PER_SECOND = 1_000_000


def distributions() -> dict[str, RowDistribution]:
    counts = 1e7 / np.arange(1, ROWS + 1)
    return {
        "uniform": adaps.Uniform(),
        "log-uniform": adaps.LogUniform(),
        "weighted": adaps.Weighted(counts**0.75),
    }


@pytest.mark.parametrize("scheme", adaps.SAMPLING_SCHEMES)
@pytest.mark.parametrize("name", ["uniform", "log-uniform", "weighted"])
def test_a_million_draws_per_second(scheme: SamplingScheme, name: str, goal: Goal, limit: Limit) -> None:
    """Includes preparing and reading rows of one number, as any scheme has to read the drawn rows."""
    distribution = distributions()[name]
    table = adaps.Table("t", rows=ROWS, length=1, sampling=adaps.Sampling(distribution, scheme))
    rows, values = np.empty(SIZE, np.int64), np.empty((SIZE, 1), np.float32)
    with adaps.Node([table]) as node:
        worker, entities = node.worker(0), node.table("t")
        worker.set(np.arange(ROWS), np.arange(ROWS, dtype=np.float32)[:, None])

        def draw(samples: int) -> None:
            for _ in range(samples):
                now = worker.current_clock
                worker.pull_sample(worker.prepare_sample(entities, SIZE, now, now + 1), rows, values)
                worker.advance_clock()

        draw(SAMPLES // 4)  # pages that are touched for the first time
        begin = time.thread_time()
        draw(SAMPLES)
        seconds = time.thread_time() - begin
    assert np.array_equal(values[:, 0], rows)
    what = f"draws by {scheme}, {name}"
    goal(what, SAMPLES * SIZE / seconds, at_least=PER_SECOND, unit="per second and thread")
    limit(f"{what}: seconds of a million", PER_SECOND * seconds / (SAMPLES * SIZE), 1.0)
