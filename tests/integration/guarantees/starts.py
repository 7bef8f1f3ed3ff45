"""Starts of a cluster on a busy machine: every process is new, but torch is imported only once.

The parent forks the ranks and never makes a node itself, so each rank begins in the state of a fresh process
after its imports. Otherwise the import of torch would take most of the time.
"""

import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch.distributed  # noqa: F401

import adaps
from tests.conftest import free_port
from tests.processes import exit_code, forked

LENGTH = 4


def main(nodes: int, loops: int, starts: int) -> dict[str, Any]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    seconds = []
    try:
        for number in range(starts):
            begin = time.monotonic()
            failed = start(nodes, number)
            if failed:
                raise RuntimeError(f"start {number}: ranks {failed} failed")
            seconds.append(time.monotonic() - begin)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    return {"starts": len(seconds), "slowest": max(seconds), "mean": sum(seconds) / len(seconds)}


def start(ranks: int, number: int) -> list[int]:
    """Start, use and end a cluster; gives the ranks that failed."""
    os.environ["MASTER_PORT"] = str(free_port())
    children = [forked(partial(live_once, rank, ranks, number)) for rank in range(ranks)]
    return [rank for rank, child in enumerate(children) if exit_code(child) != 0]


def live_once(rank: int, ranks: int, number: int) -> int:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    table = adaps.Table("t", rows=100, length=LENGTH)
    with adaps.Node([table], channels=1 + number % 3, peer_timeout=60.0) as node:
        kv = node.worker(0)
        keys = np.arange(100)
        kv.push(keys, np.ones((100, LENGTH), dtype=np.float32))
        kv.end_setup()
        out = np.empty((100, LENGTH), dtype=np.float32)
        kv.pull(keys, out)
        if not (out == ranks).all():
            raise AssertionError(f"{ranks} nodes added 1 to each value, and the sums are {out}")
    return 0
