"""After `wait_sync; barrier; wait_sync` every node reads exactly what all have pushed, round after round."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import (
    RANK,
    Floats,
    Ids,
    own_lives,
    random_generator,
    skewed,
)


def main(lives: Sequence[Any], keys: int, rounds: int, pushed: int) -> dict[str, Any]:
    reports = []
    for _, technique in own_lives(lives):
        table = adaps.Table("t", rows=keys, length=2)
        with adaps.Node([table], techniques=technique) as node:
            misses = run(node, keys, rounds, pushed)
        reports.append(
            {"misses": misses, **{name: node.stats()[name] for name in ("replicas", "relocations")}}
        )
    return {"lives": reports}


def run(node: adaps.Node, keys: int, rounds: int, pushed: int) -> int:
    kv = node.worker(0)
    expected: Floats = np.zeros(keys, dtype=np.float32)
    everything = np.arange(keys)
    out = np.empty((keys, 2), dtype=np.float32)
    misses = 0
    kv.barrier()
    for number in range(rounds):
        ids = chosen(RANK, number, keys, pushed)
        kv.intent(chosen(RANK, number + 2, keys, pushed), kv.current_clock + 2, kv.current_clock + 4)
        kv.push(ids, np.ones((len(ids), 2), dtype=np.float32))
        for rank in range(node.world_size):
            np.add.at(expected, chosen(rank, number, keys, pushed), 1.0)
        kv.wait_sync()
        kv.barrier()
        kv.wait_sync()
        kv.pull(everything, out)
        misses += int((out != expected[:, None]).any(axis=1).sum())
        kv.barrier()
        kv.advance_clock()
    return misses


def chosen(rank: int, number: int, keys: int, count: int) -> Ids:
    return skewed(random_generator(rank, number), keys, count)
