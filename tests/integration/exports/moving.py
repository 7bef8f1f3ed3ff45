"""Workers train under changing intent and export every third turn, while keys move between the nodes.

Each time the tables are exported twice: incrementally to a common directory, and in full to a new directory.
Rank 0 reads and compares both.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import adaps
from adaps.checkpoint import Export
from tests.checkpoint_files import manifest_path
from tests.integration.guarantees.common import RANK, Ids, on_threads

ROWS, LENGTH, WORKERS, PUSHED = 4000, 3, 2, 60
EVERY = 3


def rows_of(rank: int, worker: int, turn: int) -> Ids:
    """The rows that a worker trains in a turn; all workers choose the first rows most often."""
    generator = np.random.default_rng([rank, worker, turn])
    return (ROWS * generator.random(PUSHED) ** 4).astype(np.int64)


def work(node: adaps.Node, directory: Path, turns: int, worker: int) -> list[list[int]]:
    """Gives rows by part of the first directory, after each export."""
    kv = node.worker(worker)
    generator = np.random.default_rng([RANK, worker])
    parts: list[list[int]] = []
    written: Export | None = None
    for turn in range(turns):
        for ahead in range(3):
            for table in node.tables:
                kv.intent(table.keys(rows_of(RANK, worker, turn + ahead)), turn + ahead)
        rows = rows_of(RANK, worker, turn)
        gradients = generator.standard_normal((PUSHED, LENGTH)).astype(np.float32)
        for name in ("sums", "coarse", "packed"):
            kv.push(node.table(name).keys(rows), gradients, asynchronous=True)
        kv.push_gradients(node.table("adam").keys(rows), gradients)
        kv.advance_clock()
        if turn % EVERY < EVERY - 1:
            continue
        if written is not None and RANK == worker == 0:
            written.wait()
            parts.append(check(directory, turn - EVERY))
        node.export(directory / "all", worker=worker)
        written = node.export(directory / f"whole-{turn}", worker=worker)
    return parts


def check(directory: Path, turn: int) -> list[int]:
    """The incremental exports add up to the full export of the same turn."""
    told, whole = (adaps.load_export(directory / name) for name in ("all", f"whole-{turn}"))
    assert told.keys() == whole.keys() == {"sums", "coarse", "packed", "adam"}
    for name, values in told.items():
        assert values.tobytes() == whole[name].tobytes(), name
    body = json.loads(manifest_path(directory / "all").read_text())["export"]
    return [sum(file["rows"] for file in part["files"]) for part in body["parts"]]


def main(directory: str, technique: Any, turns: int) -> dict[str, Any]:
    init = adaps.Uniform(-1.0, 1.0, seed=1)
    tables = [
        adaps.Table("sums", ROWS, LENGTH, init=init),
        adaps.Table("coarse", ROWS, LENGTH, init=init, wire="bfloat16"),
        adaps.Table("packed", ROWS, LENGTH, init=init, dtype="bfloat16"),
        adaps.Table("adam", ROWS, LENGTH, optimizer=adaps.Adam(lr=0.01), init=init),
    ]
    with adaps.Node(tables, workers=WORKERS, channels=2, techniques=technique) as node:
        parts = on_threads(WORKERS, partial(work, node, Path(directory), turns))[0]
    if RANK == 0:  # the node's end has waited for the last ones
        parts.append(check(Path(directory), turns - 1))
    return {"parts": parts, **{name: node.stats()[name] for name in ("relocations", "replicas")}}
