"""Sets by all nodes on the same rows, which all nodes replicate: all of them see the same order.

Every column of a value holds (writer, number), so a mixture or a sum of two sets is detected. The script
reports the values that each worker saw, in the order in which it saw them.
"""

from functools import partial
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import FOREVER, RANK, on_threads, random_generator

ROWS = 4
LENGTH = 6
WRITER = 1 << 16  # value = writer × this + number


def main(workers: int, technique: Any, steps: int) -> dict[str, Any]:
    table = adaps.Table("t", rows=ROWS, length=LENGTH)
    with adaps.Node([table], workers=workers, techniques=technique, max_rounds_per_second=4000) as node:
        seen = on_threads(node.workers, partial(run_worker, node, steps))
    return {"seen": seen, **{name: node.stats()[name] for name in ("set_remote", "pulled_replica")}}


def run_worker(node: adaps.Node, steps: int, index: int) -> list[list[int]]:
    kv = node.worker(index)
    rng = random_generator(RANK, index)
    mine = 1 + RANK * node.workers + index
    seen: list[list[int]] = [[] for _ in range(ROWS)]
    kv.intent(np.arange(ROWS), 0, FOREVER)
    kv.end_setup()
    for number in range(steps):
        row = int(rng.integers(ROWS))
        if rng.random() < 0.4:
            value = mine * WRITER + number
            kv.set([row], np.full((1, LENGTH), value, dtype=np.float32))
            note(seen[row], value)
        out = np.full((1, LENGTH), np.nan, dtype=np.float32)
        kv.pull([row], out)
        if (out != out[0, 0]).any():
            raise AssertionError(f"row {row} is a mixture: {out}")
        note(seen[row], int(out[0, 0]))
    kv.end_setup()
    out = np.empty((ROWS, LENGTH), dtype=np.float32)
    kv.pull(np.arange(ROWS), out)
    for row in range(ROWS):
        note(seen[row], int(out[row, 0]))
    kv.barrier()
    return seen


def note(values: list[int], value: int) -> None:
    if not values or values[-1] != value:
        values.append(value)
