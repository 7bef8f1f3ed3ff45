"""Optimizer states of rows that move and have replicas, while all nodes push values to the same rows.

Each worker writes the states of rows of its own and reads them back at once: a worker reads what it wrote. At
the end every worker reads the states and values of all rows.
"""

from functools import partial
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import RANK, on_threads, random_generator

ROWS = 24
LENGTH = 3


def main(workers: int, technique: Any, steps: int) -> dict[str, Any]:
    table = adaps.Table("t", ROWS, LENGTH, adaps.Adagrad())
    with adaps.Node([table], workers=workers, techniques=technique, max_rounds_per_second=4000) as node:
        ends = on_threads(node.workers, partial(run_worker, node, steps))
    return {"ends": ends, **{name: node.stats()[name] for name in ("pushed_replica", "pushed_remote")}}


def run_worker(node: adaps.Node, steps: int, index: int) -> dict[str, list[float]]:
    kv = node.worker(index)
    rng = random_generator(RANK, index)
    number, workers = RANK * node.workers + index, node.world_size * node.workers
    written = np.zeros((ROWS, LENGTH), np.float32)
    mine = np.arange(ROWS)[np.arange(ROWS) % workers == number]
    kv.end_setup()
    for step in range(steps):
        clock = kv.current_clock
        kv.intent(rng.integers(ROWS, size=4), clock + 1, clock + 1 + int(rng.integers(1, 6)))
        kv.push(rng.integers(ROWS, size=3), np.ones((3, LENGTH), np.float32))
        some = rng.permutation(mine)[:2]
        written[some] = rng.random((len(some), LENGTH), np.float32) + step
        kv.set_state(some, written[some])
        kv.push(mine, np.ones((len(mine), LENGTH), np.float32))
        read = np.full((len(mine), LENGTH), np.nan, np.float32)
        kv.pull_state(mine, read)
        if (read != written[mine]).any():
            raise AssertionError(f"step {step}: {read} instead of {written[mine]}")
        kv.advance_clock()
    kv.end_setup()
    states, values = np.empty((ROWS, LENGTH), np.float32), np.empty((ROWS, LENGTH), np.float32)
    kv.pull_state(np.arange(ROWS), states)
    kv.pull(np.arange(ROWS), values)
    kv.barrier()
    return {
        "states": states[:, 0].tolist(),
        "mine": written[:, 0].tolist(),
        "sum": [float(values.sum(dtype=np.float64)), float(steps * (3 + len(mine)) * LENGTH)],
    }
