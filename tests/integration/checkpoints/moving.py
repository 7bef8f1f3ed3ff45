"""Workers push under changing intent and write a checkpoint every third turn, while keys are on their way."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adaps
from tests.checkpoint_files import content
from tests.integration.guarantees.common import RANK, Ids, on_threads

ROWS, LENGTH, WORKERS, PUSHED = 400, 3, 2, 60
EVERY = 3

Counts = npt.NDArray[np.float64]


def rows_of(rank: int, worker: int, turn: int) -> Ids:
    """The rows that a worker increments in a turn; all workers choose the first rows most often."""
    generator = np.random.default_rng([rank, worker, turn])
    return (ROWS * generator.random(PUSHED) ** 2).astype(np.int64)


def work(node: adaps.Node, directory: Path, counts: Counts, restore: bool, turns: int, worker: int) -> None:
    kv = node.worker(worker)
    first = int(node.restore(directory, worker=worker).extra["turn"]) if restore else 0
    assert kv.current_clock == first
    ones = np.ones((PUSHED, LENGTH), np.float32)
    for turn in range(first, first + turns):
        for ahead in range(3):
            kv.intent(node.table("sums").keys(rows_of(RANK, worker, turn + ahead)), turn + ahead)
        rows = rows_of(RANK, worker, turn)
        kv.push(node.table("sums").keys(rows), ones, asynchronous=True)
        kv.push_gradients(node.table("adagrad").keys(rows), ones)
        kv.advance_clock()
        if turn % EVERY == EVERY - 1:
            node.checkpoint(directory, worker=worker, extra={"turn": turn + 1})
            if worker == 0 and RANK == 0:
                for past in range(turn + 1 - EVERY, turn + 1):
                    add_pushes(counts, node.world_size, past)
                check(directory, counts)


def add_pushes(counts: Counts, nodes: int, turn: int) -> None:
    for rank in range(nodes):
        for worker in range(WORKERS):
            np.add.at(counts, rows_of(rank, worker, turn), 1)


def check(directory: Path, counts: Counts) -> None:
    """The files hold every push once: as the sum of ones, and as Adagrad's sum of their squares."""
    for found in (content(directory, "sums"), content(directory, "adagrad")):
        assert len(set(found.rows)) == len(found.rows)
        for row in set(np.flatnonzero(counts)) - set(found.rows):
            raise AssertionError(f"row {row} is not in the checkpoint")
    sums, adagrad = content(directory, "sums"), content(directory, "adagrad")
    assert np.array_equal(sums.values, np.repeat(counts[sums.rows, None], LENGTH, axis=1))
    assert np.array_equal(adagrad.state, np.repeat(counts[adagrad.rows, None], LENGTH, axis=1))


def main(directory: str, counts: list[float] | None, turns: int, **managed: Any) -> dict[str, Any]:
    if "policy" in managed:
        managed["policy"] = adaps.Policy.parse(managed["policy"])
    init = adaps.Uniform(-1.0, 1.0, seed=1)
    tables = [
        adaps.Table("sums", ROWS, LENGTH),
        adaps.Table("adagrad", ROWS, LENGTH, optimizer=adaps.Adagrad(lr=0.5), init=init),
    ]
    expected = np.array(counts or [0.0] * ROWS)
    restore = counts is not None
    with adaps.Node(tables, workers=WORKERS, channels=2, **managed) as node:
        on_threads(WORKERS, partial(work, node, Path(directory), expected, restore, turns))
    stats = node.stats()
    counters = {table.name: table.stats() for table in node.tables}
    moved = {name: stats[name] for name in ("relocations", "replicas")}
    return {"counts": expected.tolist(), "tables": counters, **moved}
