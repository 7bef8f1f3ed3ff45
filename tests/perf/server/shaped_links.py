"""Pings and bulk transfers over shaped links: their seconds, and the bytes that a transfer brings."""

import time

import numpy as np

import adaps
from tests.integration.guarantees.common import RANK, arguments, report
from tests.perf.server.round_trips import remote_keys

ROWS = 40_000


def main() -> None:
    given = arguments()
    length = given["length"]
    pings: list[float] = []
    transfers: list[float] = []
    received = 0.0
    # Without intent nothing moves: half of the rows stay on the other node.
    table = adaps.Table("t", rows=ROWS, length=length)
    with adaps.Node([table], techniques="static", network=given["network"]) as node:
        kv = node.worker(0)
        if RANK == 0:
            one = np.empty((1, length), dtype=np.float32)
            key = remote_keys(node, kv, ROWS, 1)
            for _ in range(given["pings"]):
                start = time.perf_counter()
                kv.pull(key, one)
                pings.append(time.perf_counter() - start)
            out = np.empty((ROWS, length), dtype=np.float32)
            kv.pull(np.arange(ROWS), out)  # makes the rows' initial values
            before = node.stats()
            for _ in range(given["transfers"]):
                start = time.perf_counter()
                kv.pull(np.arange(ROWS), out)
                transfers.append(time.perf_counter() - start)
            after = node.stats()
            received = (after["bytes_received"] - before["bytes_received"]) / given["transfers"]
        kv.barrier()
    report(pings=pings, transfers=transfers, received=received)


if __name__ == "__main__":
    main()
