"""Tables of ids that are larger than their memory and whose rows are given to other ids, on several nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import adaps

RunRanks = Callable[..., list[subprocess.CompletedProcess[str]]]

STEPS, BATCH, RESIDENT, SHARE = 40, 8, 30, 60

# In each step, no two nodes use the same id, and all changes are visible before the next step.
PROGRAM = """
import sys
import numpy as np, adaps

directory, folder = sys.argv[1:3]
steps, batch, resident, share, nodes = map(int, sys.argv[3:])

def ids_of(step, rank):
    drawn = np.random.default_rng(step).permutation(200 * nodes)[: batch * nodes]
    return (drawn[rank::nodes] * 7919 - 2**40).astype(np.int64)

def announce(kv, items, node, step):
    ids = ids_of(step, node.rank)
    rows = np.empty(batch, np.int64)
    kv.rows_of(items, ids, rows)
    keys = items.keys(rows)
    kv.intent(keys, step, step + 1)
    return ids, keys

table = adaps.Table(
    "items", length=4, keys="int64", capacity=share * nodes, evict="lru", optimizer=adaps.Adagrad(lr=1.0),
    init=adaps.Constant(0.0), memory=resident * (8 * 4 + 21), path=folder,
)
with adaps.Node([table], channels=2) as node:
    kv, items = node.worker(0), node.table("items")
    used, before, most = [], [], 0
    ahead = announce(kv, items, node, 0)
    for step in range(steps):
        ids, keys = ahead
        if step + 1 < steps:
            ahead = announce(kv, items, node, step + 1)
        values = np.empty((batch, 4), np.float32)
        kv.pull(keys, values)
        kv.push_gradients(keys, np.ones((batch, 4), np.float32))
        used.append(ids)
        before.append(values)
        stats = node.stats()
        most = max(most, int(stats["slots"]))
        assert items.stats()["ids_assigned"] <= share, items.stats()
        kv.advance_clock()
        kv.wait_sync()
        kv.barrier()
        kv.wait_sync()
    node.checkpoint(directory)
    np.savez(f"{directory}-{node.rank}", used=used, before=before, listed=kv.used_ids(items))
    stats = node.stats()
    print(most, int(items.stats()["ids_retired"]), int(stats["rows_written"]), int(stats["rows_stored"]))
"""


def trained(gradients: int) -> npt.NDArray[np.float32]:
    """Return the value of a row after its creation and some gradients of one."""
    value, square = np.float32(0.0), np.float32(0.0)
    for _ in range(gradients):
        square += np.float32(1.0)
        value -= np.float32(1.0) / np.float32(np.sqrt(square))
    return np.full(4, value, np.float32)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_rows_of_ids_equal_a_dictionary_although_few_are_in_memory_and_ids_lose_their_rows(
    run_ranks: RunRanks, tmp_path: Path, nodes: int
) -> None:
    directory = tmp_path / "saved"
    sizes = [STEPS, BATCH, RESIDENT, SHARE, nodes]
    done = run_ranks(PROGRAM, nodes, str(directory), str(tmp_path), *map(str, sizes))
    assert [rank.returncode for rank in done] == [0] * nodes, done
    printed = [[int(x) for x in rank.stdout.split()] for rank in done]
    assert all(slots <= RESIDENT for slots, _, _, _ in printed)
    assert sum(written for _, _, written, _ in printed) > 0
    assert sum(stored for _, _, _, stored in printed) > 0
    results = [np.load(f"{directory}-{rank}.npz") for rank in range(nodes)]
    model: dict[int, int] = {}  # the number of gradients of each id since it got its row
    restarted = 0
    for step in range(STEPS):
        for result in results:
            for id_, value in zip(result["used"][step].tolist(), result["before"][step], strict=True):
                known = model.get(id_, 0)
                if known > 0 and not np.array_equal(value, trained(known)):
                    known, restarted = 0, restarted + 1
                np.testing.assert_allclose(value, trained(known), rtol=1e-6)
                model[id_] = known + 1
    assert 0 < restarted <= sum(retired for _, retired, _, _ in printed)
    table = adaps.Table(
        "items",
        length=4,
        keys="int64",
        capacity=1000,
        optimizer=adaps.Adagrad(lr=1.0),
        init=adaps.Constant(0.0),
        memory="2KiB",
        path=tmp_path,
    )
    listed = results[0]["listed"]
    assert all(result["listed"].tolist() == listed.tolist() for result in results)
    assert set(listed.tolist()) <= set(model)
    assert {id_ for rank in results for id_ in rank["used"][-1].tolist()} <= set(listed.tolist())
    with adaps.Node([table]) as node:
        node.restore(directory)
        rows = np.empty(len(listed), np.int64)
        node.worker(0).rows_of(node.table("items"), listed, rows)
        keys = node.table("items").keys(rows)
        for _ in range(2):
            values = np.empty((len(listed), 4), np.float32)
            node.worker(0).pull(keys, values)
            expected = np.array([trained(model[id_]) for id_ in listed.tolist()])
            np.testing.assert_allclose(values, expected, rtol=1e-5)
            node.worker(0).push_gradients(keys, np.ones_like(values))
            model = {id_: count + 1 for id_, count in model.items()}


# The ids `a`, `b` and `c` are assigned by node 0, which has two rows for ids and memory for one of them.
GIVEN_BACK = """
import os, sys
import numpy as np, adaps

rank = int(os.environ["RANK"])
table = adaps.Table(
    "items", length=2, keys="int64", capacity=6, evict="lru", init=adaps.Constant(0.5),
    memory=(2 if rank == 1 else 1) * (2 * 4 + 21), path=sys.argv[1],
)
probe = adaps.Table("probe", length=1, keys="int64", capacity=600)
with adaps.Node([table, probe], channels=1, techniques="relocation") as node:
    kv, items = node.worker(0), node.table("items")

    def keys(*ids):
        rows = np.empty(len(ids), np.int64)
        kv.rows_of(items, ids, rows)
        return items.keys(rows)

    def values(*ids):
        out = np.empty((len(ids), 2), np.float32)
        kv.pull(keys(*ids), out)
        return out[:, 0].tolist()

    numbers = np.empty(60, np.int64)
    kv.rows_of(node.table("probe"), np.arange(60), numbers)
    a, b, c = np.flatnonzero(numbers < 200)[:3].tolist()
    others = np.flatnonzero((numbers >= 200) & (numbers < 400))[:2].tolist()
    kv.barrier()
    if rank == 1:
        kv.intent(keys(a), 0, 1)
        kv.wait_intent(keys(a))
        kv.set(keys(a), np.full((1, 2), 3, np.float32))
        kv.advance_clock()
        for other in others:
            kv.set(keys(other), np.full((1, 2), 4, np.float32))
        kv.advance_clock()
        assert node.stats()["rows_written"] > 0
    kv.barrier()
    if rank == 2:
        keys(a)
    kv.barrier()
    if rank == 0:
        kv.set(keys(b), np.full((1, 2), 5, np.float32))
        try:
            keys(c)
        except adaps.AdapsError as error:
            assert "too few of them can be retired" in str(error), error
        else:
            raise AssertionError("a row in use was retired")
    kv.barrier()
    if rank == 2:
        assert values(a) == [3.0]
        kv.advance_clock()
    kv.barrier()
    if rank == 0:
        assert values(b) == [5.0]
        assert values(c) == [0.5]
        kv.advance_clock()
        assert values(a) == [0.5]
    if rank == 1:
        assert values(*others) == [4.0, 4.0]
    kv.barrier()
"""


def test_a_row_in_a_file_that_is_given_back_keeps_its_content_if_another_node_uses_it(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    done = run_ranks(GIVEN_BACK, 3, str(tmp_path))
    assert [rank.returncode for rank in done] == [0, 0, 0], [rank.stderr for rank in done]
