"""Trains with more ids than rows in processes that are killed while nodes evict rows or write checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import adaps
import adaps.checkpoint
from tests.integration.checkpoints.lives import EVICTING, Life, lives_of

CAPACITY, IDS, BATCH, BATCHES = 64, 600, 12, 4
TABLE = adaps.Table("items", length=2, keys="int64", capacity=CAPACITY, evict="lru")

Ids = npt.NDArray[np.int64]


def ids_of(step: int, batch: int, rank: int) -> Ids:
    """The distinct ids of a batch, whose rows are set to the number of the step."""
    ids = np.random.default_rng([step, batch, rank]).choice(IDS, BATCH, replace=False)
    return ids.astype(np.int64) - IDS // 2


def last_set(nodes: int, step: int) -> dict[int, int]:
    """For each id, the last of the first `step` steps that sets its row."""
    return {
        int(one): number
        for number in range(1, step + 1)
        for batch in range(BATCHES)
        for rank in range(nodes)
        for one in ids_of(number, batch, rank)
    }


def check(node: adaps.Node, step: int, saved: Sequence[int]) -> None:
    """Raise an error unless the table has the ids of the checkpoint, with their values at this step."""
    kv, items = node.worker(0), node.table("items")
    ids = kv.used_ids(items)
    if ids.tolist() != list(saved):
        raise AssertionError(f"the checkpoint of step {step} had the ids {saved}; there are {ids.tolist()}")
    rows = np.empty(len(ids), np.int64)
    kv.rows_of(items, ids, rows, create=False)
    values = np.empty((len(ids), 2), np.float32)
    kv.pull(items.keys(rows), values)
    last = last_set(node.world_size, step)
    if values.tolist() != [[last[one]] * 2 for one in ids.tolist()]:
        raise AssertionError(f"the content is not that of step {step}")


def train(life: Life) -> None:
    with adaps.Node([TABLE], peer_timeout=30.0) as node:
        kv, items = node.worker(0), node.table("items")
        step, saved = 0, []
        if adaps.checkpoint.exists(life.directory):
            extra = node.restore(life.directory).extra
            step, saved = int(extra["step"]), extra["ids"].tolist()
        if not life.acknowledged <= step <= life.acknowledged + 1:
            raise AssertionError(f"step {life.acknowledged} was acknowledged; step {step} was restored")
        check(node, step, saved)
        kv.end_uses()  # otherwise another node could find no row that is not in use
        kv.barrier()
        for number in life.steps(node.rank, step):
            for batch in range(BATCHES):
                kv.advance_clock()
                rows = np.empty(BATCH, np.int64)
                ticket = kv.rows_of(items, ids_of(number, batch, node.rank), rows, asynchronous=True)
                life.evicting()
                assert ticket is not None
                kv.wait(ticket)
                kv.set(items.keys(rows), np.full((BATCH, 2), number, np.float32))
            kv.barrier()
            present = kv.used_ids(items)
            if number > step + 1 and not node.table("items").stats()["ids_retired"]:
                raise AssertionError("no row was evicted")
            node.checkpoint(life.directory, extra={"step": number, "ids": present})


def main(**given: Any) -> dict[str, int]:
    return lives_of(train, EVICTING, **given)
