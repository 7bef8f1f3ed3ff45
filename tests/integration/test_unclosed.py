"""Nodes that are never closed: processes that succeed end together, others report a lost peer."""

import pytest

from tests.conftest import RunRanks

ANEW = ("normal", "exception")
"""Ways to end that are tested with new interpreters; the others are tested with forks."""

# Rank 1 makes many more steps than rank 0, on rows of both, and ends in one of several ways.
PROGRAM = """
import multiprocessing, os, signal, sys
import adaps, torch

how = sys.argv[1]
rank = int(os.environ["RANK"])
ROWS, STEPS = 200, 100

def train():
    tables = [adaps.Table("emb", rows=ROWS, length=4, optimizer=adaps.SGD(lr=1.0))]
    nodes = [adaps.Node(tables) for _ in range(2 if how == "two nodes" else 1)]
    for node in nodes:
        kv, keys, rows = node.worker(0), node.table("emb").keys(torch.arange(ROWS)), torch.empty(ROWS, 4)
        kv.barrier()
        for step in range(STEPS if rank == 1 else 1):
            kv.push(keys, torch.ones(ROWS, 4))
            kv.pull(keys, rows)
            if step == 0:
                kv.barrier()  # what rank 0 pushes is there, however late it came to it
    if rank == 1 and how == "two nodes":
        nodes[1].close()
    if rank == 1:
        kv.wait_sync() if how != "two nodes" else None
        kv.pull(keys, rows) if how != "two nodes" else None
        print(rows.min().item(), rows.max().item())
        leave()

def leave():
    if how == "exception":
        raise ValueError("of rank 1")
    if how == "exit code":
        raise SystemExit(3)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)

def in_child(method):
    child = multiprocessing.get_context(method).Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)

if __name__ == "__main__":
    if how == "live helpers":
        batches = iter(torch.utils.data.DataLoader(range(8), num_workers=1, persistent_workers=True))
        next(batches)
        store = torch.distributed.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1, 2, is_master=rank == 0
        )
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if how == "fork":
        in_child("fork")
    else:
        train()
"""


@pytest.mark.parametrize("how", ["normal", "two nodes", "live helpers", "fork"])
def test_who_is_done_first_serves_the_others_until_they_are(how: str, run_ranks: RunRanks) -> None:
    first, last = run_ranks(PROGRAM, 2, how, anew=how in ANEW)
    assert (first.returncode, first.stderr) == (0, "")
    assert (last.returncode, last.stderr) == (0, "")
    if how != "two nodes":
        assert last.stdout == "101.0 101.0\n"


@pytest.mark.parametrize(("how", "code"), [("exception", 1), ("exit code", 3), ("signal", -15)])
def test_who_waits_for_one_that_fails_is_told_and_ends(how: str, code: int, run_ranks: RunRanks) -> None:
    first, last = run_ranks(PROGRAM, 2, how, anew=how in ANEW)
    assert last.returncode == code
    assert "adaps: at the end of this process: rank 1 is lost" in first.stderr
    assert first.returncode == 1
