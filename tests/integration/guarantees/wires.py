"""Two nodes add changes to the same rows of node 0 over each wire format: bytes sent, and residuals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import adaps
from adaps.policy import Home, Policy, Rule
from tests.integration.guarantees.common import (
    FOREVER,
    RANK,
    Floats,
    cluster_of,
    pulled,
    random_generator,
)

ROWS = 40
EXACT = 3e-5
"""Largest allowed difference between sums in float32 and in float64."""
HEADER_BYTES = {"setup": 20, "refresh": 16, "delta": 16, "answer": 16}
"""Header bytes of the messages that carry rows."""


def main(wires: Sequence[str], length: int, steps: int, directory: str) -> dict[str, Any]:
    results = {}
    for wire in wires:
        assert cluster_of(2)
        results[wire] = use(wire, length, steps, Path(directory) / wire)
    return results


def use(wire: str, length: int, steps: int, directory: Path) -> dict[str, Any]:
    table = adaps.Table("rows", rows=ROWS, length=length)
    rows = np.arange(ROWS)
    with adaps.Node(
        [table], policy=Policy("p", [Rule("*", None, "replication", Home("node", node=0), wire=wire)])
    ) as node:
        kv = node.worker(0)
        if RANK == 0:
            kv.set(rows, np.full((ROWS, length), 0.5, dtype=np.float32))
        kv.end_setup()
        answered = pulled(kv, rows, length)
        kv.intent(rows, 0, kv.current_clock + 10)
        kv.wait_intent(rows)
        kv.barrier()
        for change in changes(length, steps, RANK):
            kv.push(rows, change)
            kv.wait_sync()
        make_visible(kv)
        seen = pulled(kv, rows, length)
        stats = node.table("rows").stats()
        node.checkpoint(directory)
        saved = pulled(kv, rows, length)
        kv.barrier()
        for change in changes(length, steps, RANK):
            kv.push(rows, change)
            kv.wait_sync()
        for _ in range(20):
            kv.advance_clock()
        once = 0.5 + sum(changes(length, steps, rank).sum(axis=0, dtype=np.float64) for rank in range(2))
        twice = 2 * once - 0.5
        # Node 1 drops its copies, which sends the rest of its changes to node 0.
        while RANK == 0 and distance(pulled(kv, rows, length), twice) > EXACT:
            kv.wait_sync()
        make_visible(kv)
        dropped = pulled(kv, rows, length)
        node.restore(directory)
        restored = pulled(kv, rows, length)
        kv.intent(rows, kv.current_clock, FOREVER)
        kv.wait_intent(rows)
        kv.barrier()
        last = changes(length, 1, 1)[0]
        if RANK == 1:
            kv.push(rows, last)
        # Node 1 leaves, which sends the rest of its change to node 0 after some time.
        while RANK == 0 and distance(pulled(kv, rows, length), once + last) > EXACT:
            kv.wait_sync()
    return {
        "answered": distance(answered, np.full_like(once, 0.5)),
        "seen": distance(seen, once),
        "saved": distance(saved, once),
        "dropped": distance(dropped, twice),
        "restored": distance(restored, once),
        "row_bytes": {
            kind: stats[f"bytes_sent_{kind}"] - header * stats[f"messages_sent_{kind}"]
            for kind, header in HEADER_BYTES.items()
        },
        "messages": {kind: stats[f"messages_sent_{kind}"] for kind in HEADER_BYTES},
    }


def changes(length: int, steps: int, rank: int) -> Floats:
    """The changes of a rank, step by step: no number is exactly representable in a lossy wire format."""
    rng = random_generator(rank, length)
    return rng.uniform(-0.1, 0.1, (steps, ROWS, length)).astype(np.float32)


def make_visible(kv: adaps.Worker) -> None:
    kv.wait_sync()
    kv.barrier()
    kv.wait_sync()
    kv.barrier()


def distance(values: Floats, expected: np.ndarray[Any, Any]) -> float:
    return float(np.abs(values - expected).max())
