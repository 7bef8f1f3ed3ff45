"""Resident memory of a node: of a large untouched table, and for each touched row."""

import time
from typing import Any

import numpy as np
import psutil

import adaps
from tests.integration.guarantees.common import RANK

STEP = 1 << 16


def main(rows: int, length: int, touched: int) -> dict[str, Any]:
    # The rendezvous imports torch; this is not the node's.
    import torch.distributed  # noqa: F401

    resident, wall, cpu = psutil.Process().memory_info().rss, time.monotonic(), time.process_time()
    table = adaps.Table("t", rows=rows, length=length, optimizer=adaps.Adagrad())
    with adaps.Node([table]) as node:
        kv = node.worker(0)
        kv.barrier()
        start = {
            "wall": time.monotonic() - wall,
            "cpu": time.process_time() - cpu,
            "resident": psutil.Process().memory_info().rss - resident,
        }
        out = np.ones((STEP, length), dtype=np.float32)  # resident before the rows are
        slots = node.stats()["slots"]
        resident = psutil.Process().memory_info().rss
        for first in range(0, touched, STEP):
            kv.pull(np.arange(first, first + STEP), out)
        kv.barrier()
        added = node.stats()["slots"] - slots
        resident = psutil.Process().memory_info().rss - resident
        kv.barrier()
    return {"rank": RANK, "start": start, "touched": added, "resident": resident}
