"""Tables whose keys are any 64-bit ids, on several nodes."""

from pathlib import Path

import numpy as np
import pytest

import adaps
from tests.conftest import RunRanks

PROGRAM = """
import sys, threading
import numpy as np, adaps
from pathlib import Path

STEPS, BATCH, IDS = 20, 40, 300
directory, restores = sys.argv[1:3]
table = adaps.Table("items", length=4, keys="int64", capacity=400, init=adaps.Uniform(seed=5))
dense = adaps.Table("dense", 10, 4)
pool = np.random.default_rng(3).integers(-2**63, 2**63 - 1, IDS)
pool[:3] = 0, -2**63, 2**63 - 1

def work(node, worker):
    kv, items = node.worker(worker), node.table("items")
    counts = np.zeros(IDS)
    random = np.random.default_rng([node.rank, worker])
    kv.begin_setup()
    if restores == "yes":
        node.restore(directory, worker=worker)
    kv.end_setup()
    batches = [random.integers(0, IDS, BATCH) for _ in range(STEPS + 2)]
    rows = [np.empty(BATCH, np.int64) for _ in batches]
    out = np.empty((BATCH, 4), np.float32)
    for step in range(STEPS):
        for ahead in range(step + 1 if step else 0, step + 2):
            ticket = kv.rows_of(items, pool[batches[ahead]], rows[ahead], asynchronous=True)
            kv.wait(ticket)
            kv.intent(items.keys(rows[ahead]), ahead, ahead + 1)
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
    np.savez(f"{directory}-{node.rank}-{worker}", rows=known, values=values, counts=counts, used=used)

with adaps.Node([dense, table], workers=2, channels=2) as node:
    threads = [threading.Thread(target=work, args=(node, i)) for i in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    stats = node.table("items").stats()
    print(int(stats["ids_assigned"]), int(stats["ids_resolved"]), int(node.stats()["bytes_sent_resolve"]))
"""


def initial_values(ids: np.ndarray) -> np.ndarray:
    table = adaps.Table("items", length=4, keys="int64", capacity=400, init=adaps.Uniform(seed=5))
    with adaps.Node([table]) as node:
        rows = np.empty(len(ids), np.int64)
        node.worker(0).rows_of(node.table("items"), ids, rows)
        values = np.empty((len(ids), 4), np.float32)
        node.worker(0).pull(node.table("items").keys(rows), values)
    return values


def test_all_nodes_agree_on_rows_and_values_of_ids_and_go_on_with_other_numbers_of_nodes(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    pool = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 300)
    pool[:3] = 0, -(2**63), 2**63 - 1
    expected = initial_values(pool)
    directory = tmp_path / "saved"
    read = np.zeros(len(pool))
    for nodes, restores in [(2, "no"), (3, "yes"), (1, "yes")]:
        done = run_ranks(PROGRAM, nodes, str(directory), restores)
        assert [rank.returncode for rank in done] == [0] * nodes, done
        printed = [[int(x) for x in rank.stdout.split()] for rank in done]
        assert sum(assigned for assigned, _, _ in printed) == 300
        assert all((sent > 0) == (nodes > 1) for _, _, sent in printed)
        # Each worker of a node may request an id once, before the answer to the other worker arrives.
        assert all(resolved <= 2 * 300 for _, resolved, _ in printed)
        results = [np.load(f"{directory}-{rank}-{i}.npz") for rank in range(nodes) for i in range(2)]
        assert len(set(results[0]["rows"].tolist())) == 300
        expected = expected + sum(result["counts"] for result in results)[:, None]
        read += sum(result["counts"] for result in results)
        for result in results:
            assert result["used"].tolist() == sorted(pool[read > 0].tolist())
            assert result["rows"].tolist() == results[0]["rows"].tolist()
            np.testing.assert_allclose(result["values"], expected, atol=1e-4)
        ids, values = adaps.load_export_ids(f"{directory}-export", "items")
        assert set(ids.tolist()) <= set(pool.tolist())
        order = {int(i): k for k, i in enumerate(pool)}
        np.testing.assert_allclose(values, expected[[order[int(i)] for i in ids]], atol=1e-4)


def test_a_full_share_is_an_error_of_the_caller_and_the_cluster_goes_on(run_ranks: RunRanks) -> None:
    program = """
import numpy as np, adaps
table = adaps.Table("items", length=1, keys="int64", capacity=20)
with adaps.Node([table]) as node:
    kv, items = node.worker(0), node.table("items")
    rows = np.full(64, -1)
    ids = np.arange(64) + 1000 * node.rank
    try:
        kv.rows_of(items, ids, rows)
    except adaps.AdapsError as error:
        print(error)
    assert (rows == -1).all()
    kv.barrier()
"""
    for rank in run_ranks(program, 2):
        assert rank.returncode == 0, rank.stderr
        assert "table 'items' is full: node " in rank.stdout
        assert "assigns 10 of its 20 rows" in rank.stdout


def test_an_asynchronous_call_reports_a_full_share_when_it_is_waited_for(run_ranks: RunRanks) -> None:
    program = """
import numpy as np, adaps
table = adaps.Table("items", length=1, keys="int64", capacity=2)
with adaps.Node([table]) as node:
    kv, items = node.worker(0), node.table("items")
    if node.rank == 0:
        tickets, refused = [], []
        for i in range(40):
            rows = np.full(1, -1)
            try:
                tickets.append((kv.rows_of(items, [i], rows, asynchronous=True), rows, i))
            except adaps.AdapsError as error:
                assert "node 0 assigns 1 of its 2 rows" in str(error)
        for ticket, rows, i in tickets:
            try:
                kv.wait(ticket)
                assert rows[0] in (0, 1), rows
            except adaps.AdapsError as error:
                assert "node 1 assigns 1 of its 2 rows" in str(error)
                assert rows[0] == -1
                refused.append(i)
        assert len(refused) == len(tickets) - 2, tickets
        kv.rows_of(items, refused[:1], rows, asynchronous=True)  # the end of the node drops this failure
    kv.barrier()
"""
    assert [rank.returncode for rank in run_ranks(program, 2)] == [0, 0]


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_capacity_below_the_number_of_nodes_is_refused(run_ranks: RunRanks, capacity: int) -> None:
    program = f"""
import adaps
with adaps.Node([adaps.Table("items", length=1, keys="int64", capacity={capacity})]) as node:
    node.worker(0).barrier()
"""
    for rank in run_ranks(program, 2):
        refused = "at least the number of nodes, 2" in rank.stderr
        assert (rank.returncode != 0) == refused == (capacity == 1)
