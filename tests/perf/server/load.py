"""Random load for some time: keys are wanted and forgotten, replicated and moved, read and changed."""

import time
from typing import Any

import numpy as np
import psutil

import adaps
from tests.integration.guarantees.common import RANK, on_threads, random_generator, skewed

ROWS = 50_000
LENGTH = 16
BATCH = 300
LOOKAHEAD = 8
LEAST_BATCHES = 1_000


def main(seconds: float, samples: int) -> dict[str, Any]:
    table = adaps.Table("t", rows=ROWS, length=LENGTH, optimizer=adaps.Adagrad(lr=0.01))
    with adaps.Node([table], workers=2) as node:
        found = on_threads(2, lambda index: run_worker(node, index, seconds, samples))[0]
    return {"samples": found, **{name: node.stats()[name] for name in ("replicas", "relocations")}}


def run_worker(node: adaps.Node, index: int, seconds: float, samples: int) -> list[dict[str, float]]:
    """Use memory until `seconds` have passed and enough was done for the memory to settle.

    Returns the memory of the node at `samples` moments.
    """
    kv = node.worker(index)
    rng = random_generator(RANK, index)
    out = np.empty((BATCH, LENGTH), dtype=np.float32)
    gradients = np.ones((BATCH, LENGTH), dtype=np.float32)
    future = [skewed(rng, ROWS, BATCH) for _ in range(LOOKAHEAD)]
    found: list[dict[str, float]] = []
    process = psutil.Process()
    kv.barrier()
    start = time.monotonic()
    batches = 0
    while (done := min((time.monotonic() - start) / seconds, batches / LEAST_BATCHES)) < 1:
        future.append(skewed(rng, ROWS, BATCH))
        clock = kv.current_clock
        kv.intent(future[-1], clock + LOOKAHEAD, clock + LOOKAHEAD + 1)
        keys = future.pop(0)
        kv.pull(keys, out)
        kv.push_gradients(keys, gradients, asynchronous=bool(rng.random() < 0.5))
        if rng.random() < 0.02:
            kv.waitall()
        kv.advance_clock()
        batches += 1
        if done > (len(found) + 1) / (samples + 1):
            stats = node.stats()
            found.append(
                {
                    "resident": process.memory_info().rss,
                    "live": stats["resident_bytes"],
                    "slots": stats["slots"],
                    "batches": batches,
                }
            )
    kv.waitall()
    kv.end_setup()
    return found
