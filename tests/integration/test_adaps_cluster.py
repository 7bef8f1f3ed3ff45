"""Nodes in separate processes: how they meet, work, and notice that another one is missing or ends."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from adabench.harness.launch.fork_server import ForkServer
from tests.conftest import Python, RunRanks, free_port
from tests.processes import environment_of_rank
from tests.warm import WarmProcess

Rank = WarmProcess
StartRanks = Callable[..., list[Rank]]
TABLE = "adaps.Table('emb', 1000, 4)"
FAR_AWAY = 3600
"""A timeout in seconds that no test reaches, so that calls end for other reasons."""


@pytest.fixture
def start_ranks(tmp_path: Path, warm: ForkServer) -> Iterator[StartRanks]:
    """``start_ranks(script, ranks, world_size)``: a script as some ranks of a cluster, without torchrun."""
    started: list[Rank] = []
    port = free_port()

    def start(script: str, ranks: range, world_size: int) -> list[Rank]:
        path = tmp_path / "script.py"
        path.write_text(script)
        for rank in ranks:
            environment = {**os.environ, **environment_of_rank(rank, world_size, port)}
            started.append(WarmProcess(warm, [str(path)], environment, tmp_path))
        return started

    yield start
    for process in started:
        process.end()


def outcome(process: Rank, timeout: float = 240.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.wait(), out, err


def await_line(process: Rank, text: str) -> None:
    """Read the output of a process until a line contains `text`."""
    assert process.stdout is not None
    giving_up = threading.Timer(240.0, process.kill)
    giving_up.start()
    try:
        for line in process.stdout:
            if text in line:
                return
    finally:
        giving_up.cancel()
    pytest.fail(f"the process ended without printing {text!r}: {process.stderr and process.stderr.read()}")


def test_two_nodes_under_torchrun_live_twice_and_beside_a_process_group(
    tmp_path: Path, python: Python
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import numpy as np, adaps, torch
import torch.distributed as dist
keys = np.arange(1000)
for life in range(2):
    with adaps.Node([{TABLE}], channels=2) as node:
        kv = node.worker(0)
        kv.begin_setup()
        kv.set(keys[node.rank::2].copy(), np.full((500, 4), 10.0, dtype=np.float32))
        kv.end_setup()
        for step in range(5):
            kv.intent(keys, step + 1, step + 3)
            kv.push(keys, np.ones((1000, 4), dtype=np.float32), asynchronous=True)
            kv.advance_clock()
        kv.waitall()
        kv.end_setup()
        out = torch.empty(1000, 4)
        kv.pull(keys, out)
        assert (out == 10 + 5 * node.world_size).all(), out
    if life == 0:
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 2
        dist.destroy_process_group()
print("fine")
""")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    result = python(*torchrun, str(script), environment={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("fine") == 2


def test_a_process_group_may_use_the_same_port_without_torchrun(run_ranks: RunRanks) -> None:
    program = f"""
import adaps, torch.distributed as dist
dist.init_process_group("gloo")
with adaps.Node([{TABLE}]) as node:
    node.worker(0).barrier()
dist.barrier()
dist.destroy_process_group()
"""
    assert [(rank.returncode, rank.stdout) for rank in run_ranks(program, 2)] == [(0, ""), (0, "")]


def test_an_exception_in_one_body_ends_all_and_its_cause_is_told(run_ranks: RunRanks) -> None:
    program = f"""
import adaps
with adaps.Node([{TABLE}]) as node:
    kv = node.worker(0)
    kv.barrier()
    if node.rank == 1:
        raise ZeroDivisionError("the first cause")
    try:
        kv.barrier()
    except adaps.PeerLost as lost:
        print("lost", lost.rank)
        try:
            kv.pull([1], memoryview(bytearray(16)).cast("f"))
        except adaps.PeerLost as again:
            print("again", again.rank)
        raise
"""
    first, last = run_ranks(program, 2)
    assert (first.returncode, first.stdout) == (1, "lost 1\nagain 1\n"), first
    assert last.returncode == 1
    assert "the first cause" in last.stderr
    assert "PeerLost" not in last.stderr


BLOCKED = f"""
import adaps, signal
try:
    with adaps.Node([{TABLE}], peer_timeout={FAR_AWAY}) as node:
        kv = node.worker(0)
        kv.barrier()
        print("ready")
        if node.rank == 1:
            signal.pause()
        kv.barrier()
finally:
    print("left")  # the end of an interpreter that loaded torch takes seconds on a busy machine
"""


def test_a_killed_node_is_named_without_waiting_for_the_timeout(start_ranks: StartRanks) -> None:
    ranks = start_ranks(BLOCKED, range(2), 2)
    await_line(ranks[0], "ready")
    await_line(ranks[1], "ready")
    ranks[1].send_signal(signal.SIGKILL)
    await_line(ranks[0], "left")
    code, _, err = outcome(ranks[0])
    assert code == 1
    last = err.strip().splitlines()[-1]
    assert last.startswith("adaps.errors.PeerLost:")
    assert "1" in last


def test_forked_children_of_a_data_loader_do_not_hide_a_death(start_ranks: StartRanks) -> None:
    """They inherit the connections; the others must not wait for the timeout, which is far away."""
    ranks = start_ranks(
        f"""
import adaps, signal, torch
from torch.utils.data import DataLoader
try:
    with adaps.Node([{TABLE}], peer_timeout={FAR_AWAY}) as node:
        kv = node.worker(0)
        kv.barrier()
        if node.rank == 1:
            batches = iter(DataLoader(torch.arange(1000), 10, num_workers=2, multiprocessing_context="fork"))
            # One of each child: one that has not begun takes its next parent for its own, and waits for ever.
            next(batches), next(batches)
            print("ready")
            signal.pause()
        print("ready")
        kv.barrier()
except adaps.PeerLost as lost:
    print("lost", lost.rank)
""",
        range(2),
        2,
    )
    await_line(ranks[0], "ready")
    await_line(ranks[1], "ready")
    children = psutil.Process(ranks[1].pid).children()
    assert len(children) >= 2
    ranks[1].send_signal(signal.SIGKILL)
    await_line(ranks[0], "lost 1")
    assert any(child.is_running() for child in children), "the children must outlive their parent for this"
    _, alive = psutil.wait_procs(children, 240)
    assert not alive


def test_a_node_that_is_busy_in_its_own_code_is_not_lost(start_ranks: StartRanks, tmp_path: Path) -> None:
    """A node serves its rows even while it holds the interpreter's lock for longer than the timeout."""
    served = tmp_path / "served"
    os.mkfifo(served)
    ranks = start_ranks(
        f"""
import adaps, ctypes, os, time
import numpy as np
with adaps.Node([{TABLE}], peer_timeout=2, techniques="static") as node:
    kv = node.worker(0)
    keys, out = np.arange(1000), np.empty((1000, 4), np.float32)
    kv.barrier()
    if node.rank == 1:
        descriptor = os.open({str(served)!r}, os.O_RDWR)
        ctypes.PyDLL(None).read(descriptor, ctypes.create_string_buffer(1), 1)  # holds the lock meanwhile
    else:
        kv.push(keys, np.ones((1000, 4), np.float32))
        enough = time.monotonic() + 5
        while time.monotonic() < enough:
            time.sleep(0.1)
            kv.pull(keys, out)
            assert (out == 1).all()
        print("served")
    kv.barrier()
""",
        range(2),
        2,
    )
    await_line(ranks[0], "served")
    with served.open("r+b", buffering=0) as pipe:
        pipe.write(b".")
        for code, _, err in map(outcome, ranks):
            assert code == 0, err


def test_ctrl_c_ends_a_blocked_node_and_then_the_other(start_ranks: StartRanks) -> None:
    ranks = start_ranks(BLOCKED, range(2), 2)
    await_line(ranks[0], "ready")
    await_line(ranks[1], "ready")
    for rank in ranks:
        rank.send_signal(signal.SIGINT)
    for rank in ranks:
        await_line(rank, "left")
    for code, _, err in map(outcome, ranks):
        assert code != 0
        assert "KeyboardInterrupt" in err or "PeerLost" in err


def test_a_process_that_fails_without_closing_counts_as_lost(run_ranks: RunRanks) -> None:
    program = f"""
import adaps, sys
node = adaps.Node([{TABLE}])
kv = node.worker(0)
kv.barrier()
if node.rank == 1:
    sys.exit(3)
try:
    kv.barrier()
except adaps.PeerLost as lost:
    print("lost", lost.rank)
"""
    first, last = run_ranks(program, 2)
    assert (first.returncode, first.stdout) == (0, "lost 1\n"), first
    assert last.returncode == 3, last


def test_waiting_for_missing_ranks_can_be_interrupted(start_ranks: StartRanks) -> None:
    ranks = start_ranks(
        f"""
import adaps, time
sleep = time.sleep
def asks_again_later(seconds):
    print("waiting", flush=True)
    sleep(seconds)
time.sleep = asks_again_later
adaps.Node([{TABLE}], connect_timeout=600)
""",
        range(1, 2),
        3,
    )
    await_line(ranks[0], "waiting")
    ranks[0].send_signal(signal.SIGINT)
    code, _, err = outcome(ranks[0])
    assert code != 0
    assert "KeyboardInterrupt" in err


def test_an_impossible_listening_address_is_named(start_ranks: StartRanks) -> None:
    ranks = start_ranks(
        f"import adaps\nadaps.Node([{TABLE}], listen='203.0.113.77:4321', connect_timeout=3)", range(1), 2
    )
    code, _, err = outcome(ranks[0])
    assert code == 1
    last = err.strip().splitlines()[-1]
    assert last.startswith("adaps.errors.AdapsError:")
    assert "203.0.113.77" in last
    assert last.endswith("set listen= or ADAPS_LISTEN to an address and a free port of this machine")
