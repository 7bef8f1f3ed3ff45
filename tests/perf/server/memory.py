"""Resident memory of a node: of a large untouched table, and for each touched row."""

import time

import numpy as np
import psutil

import adaps
from tests.integration.guarantees.common import RANK, arguments, report

STEP = 1 << 16


def main() -> None:
    given = arguments()
    length = given["length"]
    # The rendezvous imports torch; this is not the node's.
    import torch.distributed  # noqa: F401

    resident, wall, cpu = psutil.Process().memory_info().rss, time.monotonic(), time.process_time()
    table = adaps.Table("t", rows=given["rows"], length=length, optimizer=adaps.Adagrad())
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
        for first in range(0, given["touched"], STEP):
            kv.pull(np.arange(first, first + STEP), out)
        kv.barrier()
        touched = node.stats()["slots"] - slots
        resident = psutil.Process().memory_info().rss - resident
        kv.barrier()
    report(rank=RANK, start=start, touched=touched, resident=resident)


if __name__ == "__main__":
    main()
