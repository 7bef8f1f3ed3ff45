"""Pings and bulk transfers over shaped links: their seconds, and the bytes that a transfer brings."""

import time
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import RANK
from tests.perf.server.round_trips import remote_keys

ROWS = 40_000


def main(network: str, length: int, pings: int, transfers: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"pings": [], "transfers": []}
    received = 0.0
    # Without intent nothing moves: half of the rows stay on the other node.
    table = adaps.Table("t", rows=ROWS, length=length)
    with adaps.Node([table], techniques="static", network=network) as node:
        kv = node.worker(0)
        if RANK == 0:
            one = np.empty((1, length), dtype=np.float32)
            key = remote_keys(node, kv, ROWS, 1)
            for _ in range(pings):
                start = time.perf_counter()
                kv.pull(key, one)
                seconds["pings"].append(time.perf_counter() - start)
            out = np.empty((ROWS, length), dtype=np.float32)
            kv.pull(np.arange(ROWS), out)  # makes the rows' initial values
            before = node.stats()
            for _ in range(transfers):
                start = time.perf_counter()
                kv.pull(np.arange(ROWS), out)
                seconds["transfers"].append(time.perf_counter() - start)
            after = node.stats()
            received = (after["bytes_received"] - before["bytes_received"]) / transfers
        kv.barrier()
    return {**seconds, "received": received}
