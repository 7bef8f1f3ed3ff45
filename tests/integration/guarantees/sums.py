"""Integer pushes by every worker to two tables under changing intent; the final sums must be exact.

The actions of a worker depend on its seed alone, so every worker can compute what all have pushed.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import adaps
from tests.integration.guarantees.common import (
    RANK,
    Floats,
    Ids,
    on_threads,
    own_lives,
    random_generator,
    skewed,
)

NARROW, WIDE = 3, 7  # value lengths
ROWS = 150


class Step(NamedTuple):
    """The rows that a worker pushes to, with the added values, and the rows that it will push to later."""

    narrow: Ids
    wide: Ids
    added: int
    asynchronous: bool


def main(lives: Sequence[Any], steps: int, seed: int) -> dict[str, Any]:
    pushed = 0
    moved: dict[str, float] = {}
    for number, (_, workers, technique) in enumerate(own_lives(lives)):
        tables = [
            adaps.Table("narrow", rows=ROWS, length=NARROW),
            adaps.Table("wide", rows=ROWS, length=WIDE),
        ]
        channels = 1 + number % 3
        with adaps.Node(tables, workers=workers, channels=channels, techniques=technique) as node:
            pushed += sum(on_threads(workers, partial(run_worker, node, seed + number, steps)))
        stats = node.stats()
        for name in ("relocations", "replicas", "deltas_sent"):
            key = f"{technique} {name}"
            moved[key] = moved.get(key, 0.0) + stats[name]
    return {"pushed": pushed, "moved": moved}


def plan(life: int, rank: int, worker: int, steps: int) -> list[Step]:
    rng = random_generator(life, rank, worker)
    return [
        Step(
            skewed(rng, ROWS, int(rng.integers(1, 20))),
            skewed(rng, ROWS, int(rng.integers(0, 20))),
            int(rng.integers(1, 4)),
            bool(rng.random() < 0.3),
        )
        for _ in range(steps)
    ]


def run_worker(node: adaps.Node, life: int, steps: int, index: int) -> int:
    kv = node.worker(index)
    narrow, wide = node.table("narrow"), node.table("wide")
    todo = plan(life, RANK, index, steps)
    kv.begin_setup()
    lookahead = 1 + index
    for number, step in enumerate(todo):
        if number + lookahead < steps:
            ahead = todo[number + lookahead]
            start = kv.current_clock + lookahead
            kv.intent(keys_of(ahead, narrow, wide), start, start + 1 + number % 3)
        keys = keys_of(step, narrow, wide)
        values = np.full(len(step.narrow) * NARROW + len(step.wide) * WIDE, step.added, dtype=np.float32)
        kv.push(keys, values, asynchronous=step.asynchronous)
        kv.advance_clock()
    kv.waitall()
    kv.end_setup()
    check(kv, node, life, steps)
    kv.barrier()
    return sum(len(step.narrow) + len(step.wide) for step in todo)


def keys_of(step: Step, narrow: adaps.NodeTable, wide: adaps.NodeTable) -> Ids:
    return np.concatenate([narrow.first_key + step.narrow, wide.first_key + step.wide])


def check(kv: adaps.Worker, node: adaps.Node, life: int, steps: int) -> None:
    expected: Floats = np.zeros((2, ROWS), dtype=np.float32)
    for rank, worker in product(range(node.world_size), range(node.workers)):
        for step in plan(life, rank, worker, steps):
            np.add.at(expected[0], step.narrow, step.added)
            np.add.at(expected[1], step.wide, step.added)
    for row, name in enumerate(("narrow", "wide")):
        table = node.table(name)
        out = np.full((ROWS, table.length), np.nan, dtype=np.float32)
        kv.pull(table.first_key + np.arange(ROWS), out)
        wrong = np.flatnonzero((out != expected[row][:, None]).any(axis=1))
        if wrong.size:
            raise AssertionError(
                f"{name} rows {wrong} hold {out[wrong]}; the sums are {expected[row][wrong]}"
            )
