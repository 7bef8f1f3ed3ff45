"""CPU seconds of the calling thread: intent calls of keys that repeat, and `torch.unique` of the same ids."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

import adaps
from tests.integration.guarantees.common import RANK

AHEAD = 20


def main(keys: int, calls: int) -> dict[str, float]:
    rows = 1_000_000
    # Four of ten ids are among the first thousand rows, nine of ten among the first half million.
    generator = torch.Generator().manual_seed(1 + RANK)
    batches = [(torch.rand(keys, generator=generator) ** 8 * rows).long() for _ in range(calls)]
    ratios, ours, theirs = [], [], []
    with adaps.Node([adaps.Table("t", rows=rows, length=16)]) as node:
        worker = node.worker(0)
        worker.barrier()
        for batch in batches:
            theirs.append(timed(partial(torch.unique, batch)))
            ours.append(timed(partial(worker.intent, batch, worker.current_clock + AHEAD)))
            ratios.append(ours[-1] / theirs[-1])
            worker.advance_clock()
        worker.barrier()
        intents = node.stats()["intents"]
    return {
        "ratio": median(ratios),
        "intent_microseconds": 1e6 * median(ours),
        "unique_microseconds": 1e6 * median(theirs),
        "intents": intents,
        "distinct": sum(len(torch.unique(batch)) for batch in batches),
    }


def timed(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start
