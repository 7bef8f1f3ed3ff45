"""A node is stopped or slowed to a tenth while another one writes: memory of the writer, and the sums.

Rank 1 holds copies of all rows of one table. Rank 0 writes those of them that it owns, which makes it send
rows without a request, and, while rank 1 runs at all, rows of another table of which rank 1 has no copies.
The memory of rank 0 may grow only by what its limits allow, no matter how long this takes.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import FOREVER, RANK, Floats, Ids

LENGTH = 16_384
CHUNK = 8  # rows of a call
STOPPED, RUNS = 0.18, 0.02  # seconds
HERE = -1  # the ticket of a call that took no message
ONES: Floats = np.ones((CHUNK, LENGTH), np.float32)


def main(rows: int, limit: int, seconds: float) -> dict[str, Any]:
    tables = [adaps.Table("copied", rows, LENGTH), adaps.Table("asked", 16 * CHUNK, LENGTH)]
    with adaps.Node(
        tables, techniques="replication", max_unsent_bytes=limit, max_queued_bytes=limit, peer_timeout=60.0
    ) as node:
        copied = node.table("copied").keys(np.arange(rows))
        asked = node.table("asked").keys(np.arange(16 * CHUNK))
        kv = node.worker(0)
        node.post(f"process of {RANK}", str(os.getpid()))
        if RANK == 1:
            kv.intent(copied, 0, FOREVER)
            kv.wait_intent(copied)
        push(kv, copied)
        push(kv, asked)
        kv.end_setup()
        grown = 0
        pushed = [0, 0]
        if RANK == 0:
            grown, pushed = write(node, kv, copied, asked, seconds)
            kv.waitall()
            node.post("pushed", " ".join(map(str, pushed)))
        kv.end_setup()
        right = check(node, kv, copied, asked)
        kv.barrier()
        stats = node.stats()
    return {"grown": grown, "pushed": pushed, "right": right, "stats": stats}


def write(
    node: adaps.Node, kv: adaps.Worker, copied: Ids, asked: Ids, seconds: float
) -> tuple[int, list[int]]:
    """By how many bytes memory grew at the most, and how often own rows and the others were written."""
    out = np.empty((1, LENGTH), np.float32)
    own = np.array([row for row in copied if kv.pull([row], out, asynchronous=True) == HERE])
    kv.waitall()
    node.post("own", " ".join(map(str, own)))
    process = int(node.posted("process of 1") or 0)
    before, most, pushed = resident(), 0, [0, 0]
    if seconds == 0:
        seen = looked_at(node)
        with stopped(process):
            push(kv, own)
            while looked_at(node) < seen + len(own):
                time.sleep(0.001)
            push(kv, own)
            most, pushed[0] = resident() - before, 2
    else:
        end = time.monotonic() + seconds
        with slowed(process):
            while time.monotonic() < end:
                push(kv, own)
                push(kv, asked, asynchronous=True)
                pushed = [count + 1 for count in pushed]
                most = max(most, resident() - before)
    return most, pushed


def looked_at(node: adaps.Node) -> float:
    """Refreshes that were sent, or would have been."""
    stats = node.stats()
    return stats["refreshes_sent"] + stats["refreshes_held_back"]


def push(kv: adaps.Worker, keys: Ids, asynchronous: bool = False) -> None:
    for first in range(0, len(keys), CHUNK):
        some = keys[first : first + CHUNK]
        kv.push(some, ONES[: len(some)], asynchronous=asynchronous)


def check(node: adaps.Node, kv: adaps.Worker, copied: Ids, asked: Ids) -> bool:
    """Whether every row holds the value written to it."""
    own_pushes, asked_pushes = map(int, (node.posted("pushed") or "").split())
    own = set(map(int, (node.posted("own") or "").split()))
    out = np.empty((1, LENGTH), np.float32)
    for row in (*copied, *asked):
        kv.pull([row], out)
        more = own_pushes if row in own else asked_pushes if row in asked else 0
        if not (out == node.world_size + more).all():
            return False
    return True


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextlib.contextmanager
def slowed(process: int) -> Iterator[None]:
    """A process runs for a tenth of the time."""
    over = threading.Event()

    def slow() -> None:
        while not over.is_set():
            with stopped(process):
                over.wait(STOPPED)
            over.wait(RUNS)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
