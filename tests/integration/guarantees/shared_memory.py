"""Two nodes exchange rows longer than a ring in shared memory and report whether they mapped a ring."""

from pathlib import Path
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import RANK, Floats

ROWS = 40
LENGTH = 400_000  # 1.6 MB


def main(network: str, frame_mac: bool) -> dict[str, Any]:
    table = adaps.Table("t", rows=ROWS, length=LENGTH)
    with adaps.Node([table], techniques="static", network=network, frame_mac=frame_mac) as node:
        kv = node.worker(0)
        shared = "memfd:adaps" in Path("/proc/self/maps").read_text()
        kv.set(np.arange(RANK, ROWS, 2), content(RANK))
        kv.barrier()
        out = np.empty_like(content(1 - RANK))
        kv.pull(np.arange(1 - RANK, ROWS, 2), out)
        same = bool((out == content(1 - RANK)).all())
        kv.barrier()  # the rows of the other node have been sent, too
        sent = node.stats()["bytes_sent"]
    return {"shared": shared, "same": same, "sent": sent}


def content(rank: int) -> Floats:
    """The content of every other row, starting with `rank`: whole numbers that float32 represents exactly."""
    return np.add.outer(np.arange(rank, ROWS, 2), np.arange(LENGTH)).astype(np.float32)
