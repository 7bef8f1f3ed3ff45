"""The cost of the parameter server: CPU time of rounds and of idling, memory of rows, scaling of threads.

Wall time of a busy machine is not reliable, so these are CPU seconds or ratios within one run.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Barrier, Thread
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

import adaps
from tests.perf.server import exports, load, memory, replicas

if TYPE_CHECKING:
    from tests.conftest import Launch
    from tests.perf.goals import Goal, Limit

MEGABYTE = 1e6
HUGE_PAGE = 2 << 20


def test_a_round_costs_what_changed(launch: Launch, limit: Limit, full: bool) -> None:
    """100,000 keys replicated on two nodes, 1 % of them changing: 500 rounds per second fit into a core."""
    cases = [(2, 100_000, 1_000), (2, 10_000, 1_000), (2, 100_000, 100)]
    ranks = launch(replicas.main, 2, cases=cases, seconds=10 if full else 2)
    costs = []
    for case, (_, keys, changing) in enumerate(cases):
        both = [rank["cases"][case] for rank in ranks]
        rounds = sum(node["rounds"] for node in both)
        assert sum(node["deltas"] + node["refreshes"] for node in both) >= 0.9 * changing * rounds
        # A round of one node also costs the other; both go round equally often only on average.
        costs.append(sum(node["cpu"] for node in both) / rounds)
        wall = [round(node["rounds_per_second"]) for node in both]
        cost = f"{1e3 * costs[-1]:.3f} ms of CPU per round"
        print(f"{changing} of {keys} keys: {cost}; {wall} rounds per second")
    one_percent, fewer_replicas, fewer_changes = costs
    limit("CPU seconds of a round", one_percent, 1 / 500)
    limit("a round, in rounds with a tenth of the replicas", one_percent / fewer_replicas, 1.5)
    limit("a round with a tenth of the changes, in rounds", fewer_changes / one_percent, 0.5)


def test_doing_nothing_costs_nothing(launch: Launch, goal: Goal, limit: Limit, full: bool) -> None:
    cases = [(4, 20_000, 0), (2, 100_000, 0)]
    ranks = launch(replicas.main, 4, cases=cases, seconds=30 if full else 4)
    busiest = max(rank["cases"][0]["cpu_share"] for rank in ranks)
    goal("idle cluster of 4 nodes", 100 * busiest, at_most=0.5, unit="% of a core per node")
    for rank in ranks:
        print(rank["cases"])
        for case in rank["cases"]:
            limit("share of a core that an idle node takes", case["cpu_share"], 0.005)
            assert case["bytes_sent"] == 0
    assert sum(rank["cases"][0]["replicas"] for rank in ranks) >= 3 * 20_000


def test_a_large_table_starts_at_once(launch: Launch, limit: Limit) -> None:
    for rank in launch(memory.main, 2, rows=34_000_000, length=16, touched=0):
        print(rank)
        limit("CPU seconds of a start", rank["start"]["cpu"], 2.0)
        assert rank["start"]["resident"] < 300 * MEGABYTE


def test_a_row_costs_24_bytes_beyond_values_and_state(launch: Launch, goal: Goal) -> None:
    (rank,) = launch(memory.main, 1, rows=1 << 20, length=16, touched=1 << 20)
    print(rank)
    assert rank["touched"] == 1 << 20
    beyond = rank["resident"] - rank["touched"] * 2 * 16 * 4
    goal("resident bytes per key, beyond value and state", beyond / rank["touched"], at_most=24, unit="bytes")
    assert beyond <= 24 * rank["touched"] + 3 * HUGE_PAGE


def test_memory_does_not_grow_beyond_the_live_set(launch: Launch, full: bool) -> None:
    seconds, samples = (600, 20) if full else (10, 5)
    ranks = launch(load.main, 4, seconds + 240, seconds=seconds, samples=samples)
    for rank in ranks:
        print([{name: int(value) for name, value in sample.items()} for sample in rank["samples"]])
        assert rank["replicas"] + rank["relocations"] > 1_000  # among 300 keys in each of a thousand batches
        settled, last = rank["samples"][len(rank["samples"]) // 2], rank["samples"][-1]
        growth = last["resident"] - settled["resident"]
        assert growth <= max(last["live"] - settled["live"], 0) + 4 * HUGE_PAGE


def test_exports_hardly_hold_up_training(
    launch: Launch, goal: Goal, limit: Limit, tmp_path: Path, full: bool, judged: bool
) -> None:
    """Two nodes have 200,000 rows of 32 floats; each export holds the changes since the last one."""
    steps, rounds = (4_000, 9) if full or judged else (400, 3)
    ranks = launch(exports.main, 2, 600, directory=str(tmp_path / "saved"), steps=steps, rounds=rounds)
    exporting, plain = (
        list(zip(*(rank[name] for rank in ranks), strict=True)) for name in ("exporting", "plain")
    )
    ratios = [
        max(node["wall"] for node in one) / max(node["wall"] for node in other)
        for one, other in zip(exporting, plain, strict=True)
    ]
    for what, blocks in (("the first one", [[rank["first"] for rank in ranks]]), ("a later one", exporting)):
        megabytes = median(node["bytes"] for block in blocks for node in block) / MEGABYTE
        blocked = median(node["blocked"] for block in blocks for node in block)
        print(f"{what}: {megabytes:.1f} MB per node, {1e3 * blocked:.1f} ms blocked")
    seconds = median(node["wall"] for block in plain for node in block)
    cpu = median(
        own["cpu"] - other["cpu"]
        for one, without in zip(exporting, plain, strict=True)
        for own, other in zip(one, without, strict=True)
    )
    print(f"in {seconds:.2f} s, of which it takes {1e3 * cpu:.0f} ms of CPU; in all {ratios}")
    goal(
        f"training while an export is written every {steps} steps, 2 nodes",
        median(ratios),
        at_most=1.05,
        unit="× the time without",
    )
    limit("training with exports, in the time without", median(ratios), 1.05)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two threads need two cores")
def test_threads_scale(goal: Goal, limit: Limit) -> None:
    """Two threads with separate keys use as many cores as two hashing ones, at one thread's cost per key."""
    rows, length, calls = 200_000, 16, 40
    with adaps.Node([adaps.Table("t", rows=rows, length=length)], workers=2) as node:
        keys = [np.random.default_rng(i).integers(0, rows // 2, 50_000) + i * rows // 2 for i in range(2)]
        out = [np.empty((50_000, length), dtype=np.float32) for _ in range(2)]
        text = bytes(50_000_000)

        def access(index: int) -> None:
            kv = node.worker(index)
            for _ in range(calls):
                kv.pull(keys[index], out[index])
                kv.push(keys[index], out[index])

        def hash_text(index: int) -> None:
            hashlib.sha256(text).digest()  # releases the interpreter's lock

        measure(access, 2)
        alone = min(measure(access, 1).cpu for _ in range(3))
        ours, theirs = zip(*((measure(access, 2), measure(hash_text, 2)) for _ in range(9)), strict=True)
        cores = median(run.cpu / run.wall for run in ours)
        reference = median(run.cpu / run.wall for run in theirs)
        price = min(run.cpu for run in ours) / 2 / alone
    print(f"{cores:.2f} cores, hashing {reference:.2f}; a key costs {price:.2f} × that of one thread")
    # Relative to what two threads that hash get: a busy machine gives neither two whole cores.
    goal("2 worker threads on disjoint keys", 2 * cores / reference / price, at_least=1.8, unit="× one")
    # Twice with the interpreter's lock held.
    limit("two threads that hash, in the cores that two of ours get", reference / cores, 1 / 0.75)
    limit("a key for one of two threads, in those for one alone", price, 1.5)


class Spent(NamedTuple):
    """CPU seconds of all threads, and seconds until the last was done."""

    cpu: float
    wall: float


def measure(work: Callable[[int], None], threads: int) -> Spent:
    together = Barrier(threads + 1)

    def run(index: int) -> None:
        together.wait()
        work(index)

    running = [Thread(target=run, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    together.wait()
    cpu, wall = time.process_time(), time.monotonic()
    for thread in running:
        thread.join()
    return Spent(time.process_time() - cpu, time.monotonic() - wall)
