"""Tables of ids that are larger than their memory and whose rows are given to other ids, on several nodes."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import adaps
from tests.conftest import Launch

from .guarantees.common import RANK

STEPS, BATCH, RESIDENT, SHARE = 40, 8, 30, 60

Ids = npt.NDArray[np.int64]


def items_table(**options: Any) -> adaps.Table:
    rule, init = adaps.Adagrad(lr=1.0), adaps.Constant(0.0)
    return adaps.Table("items", length=4, keys="int64", optimizer=rule, init=init, **options)


def ids_of(step: int, node: adaps.Node) -> Ids:
    """The ids that a node uses in a step; no other node uses one of them."""
    nodes = node.world_size
    drawn = np.random.default_rng(step).permutation(200 * nodes)[: BATCH * nodes]
    return (drawn[node.rank :: nodes] * 7919 - 2**40).astype(np.int64)


def announce(node: adaps.Node, step: int) -> tuple[Ids, Ids]:
    kv, items = node.worker(0), node.table("items")
    ids, rows = ids_of(step, node), np.empty(BATCH, np.int64)
    kv.rows_of(items, ids, rows)
    keys = items.keys(rows)
    kv.intent(keys, step, step + 1)
    return ids, keys


def retired(directory: str, folder: str, nodes: int) -> dict[str, Any]:
    """Train with the ids of each step; all changes are visible before the next step."""
    table = items_table(capacity=SHARE * nodes, evict="lru", memory=RESIDENT * (8 * 4 + 21), path=folder)
    with adaps.Node([table], channels=2) as node:
        kv, items = node.worker(0), node.table("items")
        used, before, most = [], [], 0.0
        ahead = announce(node, 0)
        for step in range(STEPS):
            ids, keys = ahead
            if step + 1 < STEPS:
                ahead = announce(node, step + 1)
            values = np.empty((BATCH, 4), np.float32)
            kv.pull(keys, values)
            kv.push_gradients(keys, np.ones((BATCH, 4), np.float32))
            used.append(ids.tolist())
            before.append(values.tolist())
            most = max(most, node.stats()["slots"])
            assert items.stats()["ids_assigned"] <= SHARE, items.stats()
            kv.advance_clock()
            kv.wait_sync()
            kv.barrier()
            kv.wait_sync()
        node.checkpoint(directory)
        stats = node.stats()
        return {
            "used": used,
            "before": before,
            "listed": kv.used_ids(items).tolist(),
            "most": most,
            "retired": items.stats()["ids_retired"],
            "written": stats["rows_written"],
            "stored": stats["rows_stored"],
        }


def trained(gradients: int) -> npt.NDArray[np.float32]:
    """Return the value of a row after its creation and some gradients of one."""
    value, square = np.float32(0.0), np.float32(0.0)
    for _ in range(gradients):
        square += np.float32(1.0)
        value -= np.float32(1.0) / np.float32(np.sqrt(square))
    return np.full(4, value, np.float32)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_rows_of_ids_equal_a_dictionary_although_few_are_in_memory_and_ids_lose_their_rows(
    launch: Launch, tmp_path: Path, nodes: int
) -> None:
    directory = tmp_path / "saved"
    results = launch(retired, nodes, directory=str(directory), folder=str(tmp_path), nodes=nodes)
    assert all(result["most"] <= RESIDENT for result in results)
    assert sum(result["written"] for result in results) > 0
    assert sum(result["stored"] for result in results) > 0
    model: dict[int, int] = {}  # the number of gradients of each id since it got its row
    restarted = 0
    for step in range(STEPS):
        for result in results:
            for id_, value in zip(result["used"][step], result["before"][step], strict=True):
                known = model.get(id_, 0)
                if known > 0 and not np.array_equal(value, trained(known)):
                    known, restarted = 0, restarted + 1
                np.testing.assert_allclose(value, trained(known), rtol=1e-6)
                model[id_] = known + 1
    assert 0 < restarted <= sum(result["retired"] for result in results)
    listed = results[0]["listed"]
    assert all(result["listed"] == listed for result in results)
    assert set(listed) <= set(model)
    assert {id_ for rank in results for id_ in rank["used"][-1]} <= set(listed)
    with adaps.Node([items_table(capacity=1000, memory="2KiB", path=tmp_path)]) as node:
        node.restore(directory)
        rows = np.empty(len(listed), np.int64)
        node.worker(0).rows_of(node.table("items"), listed, rows)
        keys = node.table("items").keys(rows)
        for _ in range(2):
            values = np.empty((len(listed), 4), np.float32)
            node.worker(0).pull(keys, values)
            expected = np.array([trained(model[id_]) for id_ in listed])
            np.testing.assert_allclose(values, expected, rtol=1e-5)
            node.worker(0).push_gradients(keys, np.ones_like(values))
            model = {id_: count + 1 for id_, count in model.items()}


# The ids `a`, `b` and `c` are assigned by node 0, which has two rows for ids and memory for one of them.
def given_back(folder: str) -> dict[str, Any]:
    memory, half = (2 if RANK == 1 else 1) * (2 * 4 + 21), adaps.Constant(0.5)
    table = adaps.Table(
        "items", length=2, keys="int64", capacity=6, evict="lru", init=half, memory=memory, path=folder
    )
    probe = adaps.Table("probe", length=1, keys="int64", capacity=600)
    with adaps.Node([table, probe], channels=1, techniques="relocation") as node:
        kv, items = node.worker(0), node.table("items")

        def keys(*ids: int) -> Ids:
            rows = np.empty(len(ids), np.int64)
            kv.rows_of(items, ids, rows)
            return items.keys(rows)

        def values(*ids: int) -> Any:
            out = np.empty((len(ids), 2), np.float32)
            kv.pull(keys(*ids), out)
            return out[:, 0].tolist()

        numbers = np.empty(60, np.int64)
        kv.rows_of(node.table("probe"), np.arange(60), numbers)
        a, b, c = np.flatnonzero(numbers < 200)[:3].tolist()
        others = np.flatnonzero((numbers >= 200) & (numbers < 400))[:2].tolist()
        kv.barrier()
        if RANK == 1:
            kv.intent(keys(a), 0, 1)
            kv.wait_intent(keys(a))
            kv.set(keys(a), np.full((1, 2), 3, np.float32))
            kv.advance_clock()
            for other in others:
                kv.set(keys(other), np.full((1, 2), 4, np.float32))
            kv.advance_clock()
            assert node.stats()["rows_written"] > 0
        kv.barrier()
        if RANK == 2:
            keys(a)
        kv.barrier()
        if RANK == 0:
            kv.set(keys(b), np.full((1, 2), 5, np.float32))
            with pytest.raises(adaps.AdapsError, match="too few of them can be retired"):
                keys(c)
        kv.barrier()
        if RANK == 2:
            assert values(a) == [3.0]
            kv.advance_clock()
        kv.barrier()
        if RANK == 0:
            assert values(b) == [5.0]
            assert values(c) == [0.5]
            kv.advance_clock()
            assert values(a) == [0.5]
        if RANK == 1:
            assert values(*others) == [4.0, 4.0]
        kv.barrier()
    return {}


def test_a_row_in_a_file_that_is_given_back_keeps_its_content_if_another_node_uses_it(
    launch: Launch, tmp_path: Path
) -> None:
    launch(given_back, 3, folder=str(tmp_path))
