"""Tables whose keys are any 64-bit ids, on several nodes."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import adaps
from tests.conftest import Launch

from .guarantees.common import on_threads

STEPS, BATCH, IDS = 20, 40, 300
ITEMS = adaps.Table("items", length=4, keys="int64", capacity=400, init=adaps.Uniform(seed=5))

Ids = npt.NDArray[np.int64]


def ids() -> Ids:
    drawn = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, IDS)
    drawn[:3] = 0, -(2**63), 2**63 - 1
    return drawn


def initial_values() -> npt.NDArray[np.float32]:
    with adaps.Node([ITEMS]) as node:
        rows = np.empty(IDS, np.int64)
        node.worker(0).rows_of(node.table("items"), ids(), rows)
        values = np.empty((IDS, 4), np.float32)
        node.worker(0).pull(node.table("items").keys(rows), values)
    return values


def trained(directory: str, restores: bool) -> dict[str, Any]:
    """Count random ids by two workers, save the counts, and read the rows and values of all ids."""
    with adaps.Node([adaps.Table("dense", 10, 4), ITEMS], workers=2, channels=2) as node:
        workers = on_threads(2, partial(train, node, directory, restores))
        stats = node.table("items").stats()
        return {
            "workers": workers,
            "assigned": stats["ids_assigned"],
            "resolved": stats["ids_resolved"],
            "sent": node.stats()["bytes_sent_resolve"],
        }


def train(node: adaps.Node, directory: str, restores: bool, worker: int) -> dict[str, Any]:
    kv, items = node.worker(worker), node.table("items")
    pool, counts = ids(), np.zeros(IDS)
    random = np.random.default_rng([node.rank, worker])
    kv.begin_setup()
    if restores:
        node.restore(directory, worker=worker)
    kv.end_setup()
    first = kv.current_clock
    batches = [random.integers(0, IDS, BATCH) for _ in range(STEPS + 2)]
    rows = [np.empty(BATCH, np.int64) for _ in batches]
    out = np.empty((BATCH, 4), np.float32)
    for step in range(STEPS):
        for ahead in range(step + 1 if step else 0, step + 2):
            ticket = kv.rows_of(items, pool[batches[ahead]], rows[ahead], asynchronous=True)
            assert ticket is not None
            kv.wait(ticket)
            kv.intent(items.keys(rows[ahead]), first + ahead, first + ahead + 1)
        keys = items.keys(rows[step])
        kv.pull(keys, out)
        kv.push(keys, np.ones((BATCH, 4), np.float32), asynchronous=True)
        np.add.at(counts, batches[step], 1)
        kv.advance_clock()
    kv.waitall()
    kv.end_setup()
    used = kv.used_ids(items)
    node.checkpoint(directory, extra={"counts": counts}, worker=worker)
    node.export(directory + "-export", worker=worker).wait()
    known = np.empty(IDS, np.int64)
    kv.rows_of(items, pool, known)
    values = np.empty((IDS, 4), np.float32)
    kv.pull(items.keys(known), values)
    kv.end_setup()
    return {
        "rows": known.tolist(),
        "values": values.tolist(),
        "counts": counts.tolist(),
        "used": used.tolist(),
    }


def test_all_nodes_agree_on_rows_and_values_of_ids_and_go_on_with_other_numbers_of_nodes(
    launch: Launch, tmp_path: Path
) -> None:
    pool, expected = ids(), initial_values()
    directory = str(tmp_path / "saved")
    read = np.zeros(IDS)
    for nodes, restores in [(2, False), (3, True), (1, True)]:
        ranks = launch(trained, nodes, directory=directory, restores=restores)
        assert sum(rank["assigned"] for rank in ranks) == IDS
        assert all((rank["sent"] > 0) == (nodes > 1) for rank in ranks)
        # Each worker of a node may request an id once, before the answer to the other worker arrives.
        assert all(rank["resolved"] <= 2 * IDS for rank in ranks)
        results = [worker for rank in ranks for worker in rank["workers"]]
        assert len(set(results[0]["rows"])) == IDS
        counts = np.sum([result["counts"] for result in results], axis=0)
        expected = expected + counts[:, None]
        read += counts
        for result in results:
            assert result["used"] == sorted(pool[read > 0].tolist())
            assert result["rows"] == results[0]["rows"]
            np.testing.assert_allclose(result["values"], expected, atol=1e-4)
        exported, values = adaps.load_export_ids(f"{directory}-export", "items")
        order = {int(i): k for k, i in enumerate(pool)}
        np.testing.assert_allclose(values, expected[[order[int(i)] for i in exported]], atol=1e-4)


def more_than_the_share() -> dict[str, Any]:
    with adaps.Node([adaps.Table("items", length=1, keys="int64", capacity=20)]) as node:
        kv, rows = node.worker(0), np.full(64, -1)
        with pytest.raises(adaps.AdapsError) as refused:
            kv.rows_of(node.table("items"), np.arange(64) + 1000 * node.rank, rows)
        assert (rows == -1).all()
        kv.barrier()
    return {"refused": str(refused.value)}


def test_a_full_share_is_an_error_of_the_caller_and_the_cluster_goes_on(launch: Launch) -> None:
    for rank in launch(more_than_the_share, 2):
        assert "table 'items' is full: node " in rank["refused"]
        assert "assigns 10 of its 20 rows" in rank["refused"]


def asynchronously_more_than_the_share() -> dict[str, Any]:
    told: dict[str, list[str]] = {"at once": [], "later": []}
    with adaps.Node([adaps.Table("items", length=1, keys="int64", capacity=2)]) as node:
        kv, items = node.worker(0), node.table("items")
        if node.rank == 0:
            tickets, refused = [], []
            for i in range(40):
                rows = np.full(1, -1)
                try:
                    tickets.append((kv.rows_of(items, [i], rows, asynchronous=True), rows, i))
                except adaps.AdapsError as error:
                    told["at once"].append(str(error))
            for ticket, rows, i in tickets:
                assert ticket is not None
                try:
                    kv.wait(ticket)
                    assert rows[0] in (0, 1), rows
                except adaps.AdapsError as error:
                    told["later"].append(str(error))
                    assert rows[0] == -1
                    refused.append(i)
            assert len(refused) == len(tickets) - 2, tickets
            # the end of the node drops this failure
            kv.rows_of(items, refused[:1], rows, asynchronous=True)
        kv.barrier()
    return told


def test_an_asynchronous_call_reports_a_full_share_when_it_is_waited_for(launch: Launch) -> None:
    told, _ = launch(asynchronously_more_than_the_share, 2)
    assert all("node 0 assigns 1 of its 2 rows" in message for message in told["at once"])
    assert all("node 1 assigns 1 of its 2 rows" in message for message in told["later"])


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_capacity_below_the_number_of_nodes_is_refused(launch: Launch, capacity: int) -> None:
    for rank in launch(table_of, 2, capacity=capacity):
        assert ("at least the number of nodes, 2" in rank["refused"]) == (capacity == 1)


def table_of(capacity: int) -> dict[str, Any]:
    try:
        with adaps.Node([adaps.Table("items", length=1, keys="int64", capacity=capacity)]) as node:
            node.worker(0).barrier()
    except ValueError as error:
        return {"refused": str(error)}
    return {"refused": ""}
