"""Random calls with duplicate keys, checked against arrays: workers write separate rows and all read all.

All nodes read and announce the rows of each writer, so these rows are remote, relocated and replicated in
turn. The writer must always read exactly the result of its own calls in their order.
"""

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import (
    FOREVER,
    RANK,
    Floats,
    Ids,
    on_threads,
    own_lives,
    random_generator,
)

LENGTH = 3
ROWS_A_WORKER = 12


class Writer:
    """A worker, and what its rows must hold."""

    def __init__(self, node: adaps.Node, index: int, life: int) -> None:
        self.kv = node.worker(index)
        self.rows = ROWS_A_WORKER * node.workers * node.world_size
        self.first = ROWS_A_WORKER * (RANK * node.workers + index)
        self.values: Floats = np.zeros((self.rows, LENGTH), dtype=np.float32)
        self.rng = random_generator(life, RANK, index)

    def own(self, most: int = 10) -> Ids:
        return self.first + self.rng.integers(0, ROWS_A_WORKER, int(self.rng.integers(1, most)))

    def integers(self, count: int) -> Floats:
        return self.rng.integers(-8, 9, (count, LENGTH)).astype(np.float32)

    def push(self) -> None:
        ids = self.own()
        deltas = self.integers(len(ids))
        self.kv.push(ids, deltas)
        np.add.at(self.values, ids, deltas)

    def set(self) -> None:
        ids = self.own()
        values = self.integers(len(ids))
        self.kv.set(ids, values)
        for row, value in zip(ids, values, strict=True):
            self.values[row] = value

    def push_freed_arrays(self) -> None:
        """Push arrays asynchronously and drop every reference to them."""
        for _ in range(int(self.rng.integers(1, 4))):
            ids = self.own()
            deltas = self.integers(len(ids))
            np.add.at(self.values, ids, deltas)
            self.kv.push(ids.copy(), deltas, asynchronous=True)
            del deltas
            if self.rng.random() < 0.05:
                gc.collect()
            np.full(64, np.nan, dtype=np.float32)  # takes the memory that was freed
        self.kv.waitall()

    def pull(self) -> None:
        ids = np.concatenate([self.own(), self.rng.integers(0, self.rows, 5), self.own()])
        out = np.full((len(ids), LENGTH), np.nan, dtype=np.float32)
        ticket = self.kv.pull(ids, out, asynchronous=bool(self.rng.random() < 0.3))
        if ticket is not None:
            self.kv.wait(ticket)
        if np.isnan(out).any():
            raise AssertionError(f"of keys {ids} nobody wrote {ids[np.isnan(out).any(axis=1)]}")
        mine = (ids >= self.first) & (ids < self.first + ROWS_A_WORKER)
        if not np.array_equal(out[mine], self.values[ids[mine]]):
            raise AssertionError(f"keys {ids[mine]} hold {self.values[ids[mine]]}, but read {out[mine]}")

    def announce(self) -> None:
        ids = self.rng.integers(0, self.rows, int(self.rng.integers(1, 12)))
        start = self.kv.current_clock + int(self.rng.integers(0, 3))
        self.kv.intent(ids, start, start + int(self.rng.integers(1, 5)))


def main(lives: Sequence[Any], workers: int, steps: int, counted: Sequence[str]) -> dict[str, Any]:
    reports = []
    for number, (nodes, technique, everybody_wants_all) in enumerate(own_lives(lives)):
        rows = ROWS_A_WORKER * workers * nodes
        with adaps.Node(
            [adaps.Table("t", rows=rows, length=LENGTH)],
            workers=workers,
            channels=1 + number % 3,
            techniques=technique,
            max_rounds_per_second=4000,
        ) as node:
            on_threads(node.workers, partial(run_worker, node, number, steps, everybody_wants_all))
        stats = node.stats()
        reports.append({name: stats[name] for name in counted})
    return {"lives": reports}


def run_worker(node: adaps.Node, life: int, steps: int, everybody_wants_all: bool, index: int) -> None:
    writer = Writer(node, index, life)
    kv = writer.kv
    if everybody_wants_all:
        kv.intent(np.arange(writer.rows), 0, FOREVER)
    kv.end_setup()
    actions = [writer.push, writer.push, writer.set, writer.push_freed_arrays, writer.pull, writer.pull]
    for _ in range(steps):
        actions[int(writer.rng.integers(len(actions)))]()
        if not everybody_wants_all and writer.rng.random() < 0.3:
            writer.announce()
        if writer.rng.random() < 0.5:
            kv.advance_clock()
    kv.end_setup()
    writer.pull()
    kv.barrier()
