"""CPU seconds of the calling thread: intent calls of keys that repeat, and `torch.unique` of the same ids."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

import adaps
from tests.integration.guarantees.common import RANK, arguments, report

AHEAD = 20


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    rows, count = 1_000_000, given["keys"]
    # Four of ten ids are among the first thousand rows, nine of ten among the first half million.
    generator = torch.Generator().manual_seed(1 + RANK)
    calls = [(torch.rand(count, generator=generator) ** 8 * rows).long() for _ in range(given["calls"])]
    ratios, ours, theirs = [], [], []
    with adaps.Node([adaps.Table("t", rows=rows, length=16)]) as node:
        worker = node.worker(0)
        worker.barrier()
        for keys in calls:
            theirs.append(timed(partial(torch.unique, keys)))
            ours.append(timed(partial(worker.intent, keys, worker.current_clock + AHEAD)))
            ratios.append(ours[-1] / theirs[-1])
            worker.advance_clock()
        worker.barrier()
        intents = node.stats()["intents"]
    report(
        ratio=median(ratios),
        intent_microseconds=1e6 * median(ours),
        unique_microseconds=1e6 * median(theirs),
        intents=intents,
        distinct=sum(len(torch.unique(keys)) for keys in calls),
    )


def timed(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


if __name__ == "__main__":
    main()
