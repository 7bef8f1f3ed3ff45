"""Synchronous push/pull pairs of all workers on a few keys whose replicas come and go.

Every worker adds 1 to its own column of the values with each push. It must therefore read exactly what it has
written in this column, and must never see the other columns decrease. Either one node has intent for all keys
all the time and therefore stays their owner, or no node does.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import (
    FOREVER,
    RANK,
    Floats,
    on_threads,
    own_lives,
    random_generator,
)

KEYS = 24


def main(lives: Sequence[Any], workers: int) -> dict[str, Any]:
    totals: list[dict[str, float]] = []
    for number, (nodes, technique, owner_has_intent, pairs) in enumerate(own_lives(lives)):
        columns = nodes * workers
        table = adaps.Table("counts", rows=KEYS, length=columns)
        start = time.monotonic()
        with adaps.Node(
            [table],
            workers=workers,
            channels=1 + number % 2,
            techniques=technique,
            max_rounds_per_second=5000,
        ) as node:
            quota = -(-pairs // columns)
            permanent = owner_has_intent and RANK == 0
            results = on_threads(node.workers, partial(run_worker, node, number, quota, permanent))
        stats = node.stats()
        counted = ("replicas", "replicas_dropped", "relocations", "pulled_remote", "pulled_replica")
        timed = {"pairs": sum(results), "seconds": time.monotonic() - start}
        totals.append(timed | {name: stats[name] for name in counted})
    return {"lives": totals}


def run_worker(node: adaps.Node, life: int, quota: int, permanent: bool, index: int) -> int:
    kv = node.worker(index)
    rng = random_generator(life, RANK, index)
    columns = node.table("counts").length
    mine = RANK * node.workers + index
    written = np.zeros(KEYS, dtype=np.float32)
    seen: Floats = np.zeros((KEYS, columns), dtype=np.float32)
    if permanent:
        kv.intent(np.arange(KEYS), 0, FOREVER)
    kv.end_setup()
    pairs = 0
    while pairs < quota:
        if rng.random() < 0.3 and not permanent:
            start = kv.current_clock + int(rng.integers(0, 3))
            kv.intent(
                rng.choice(KEYS, int(rng.integers(1, 9)), replace=False),
                start,
                start + int(rng.integers(1, 6)),
            )
        keys = rng.choice(KEYS, int(rng.integers(1, 7)), replace=False)
        deltas = np.zeros((len(keys), columns), dtype=np.float32)
        deltas[:, mine] = 1.0
        kv.push(keys, deltas)
        written[keys] += 1.0
        check(kv, keys, written, seen, mine)
        pairs += len(keys)
        if rng.random() < 0.2:
            check(kv, rng.choice(KEYS, 3, replace=False), written, seen, mine)
        if rng.random() < 0.4:
            kv.advance_clock()
    kv.end_setup()
    check(kv, np.arange(KEYS), written, seen, mine)
    return pairs


def check(kv: adaps.Worker, keys: np.ndarray, written: Floats, seen: Floats, mine: int) -> None:
    out = np.full((len(keys), seen.shape[1]), np.nan, dtype=np.float32)
    kv.pull(keys, out)
    if not np.array_equal(out[:, mine], written[keys]):
        raise AssertionError(f"own writes of keys {keys}: {written[keys]}, but read {out[:, mine]}")
    if not (out >= seen[keys]).all():
        raise AssertionError(f"keys {keys} had {seen[keys]}, and then {out}")
    seen[keys] = out
