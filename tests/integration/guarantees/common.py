"""Functions that the programs of ranks share."""

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import adaps

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
T = TypeVar("T")

RANK = int(os.environ.get("RANK", "0"))
FOREVER = 1 << 40


def cluster_of(nodes: int) -> bool:
    """Make the next node part of a cluster of the first `nodes` ranks; False for the others.

    Sizes must fall, so that all members have met equally often.
    """
    os.environ["WORLD_SIZE"] = str(nodes)
    return nodes > RANK


def own_lives(lives: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """The clusters that this rank is part of, one after the other: each begins with its number of nodes."""
    for nodes, *rest in lives:
        if not cluster_of(nodes):
            return
        yield nodes, *rest


def pulled(kv: adaps.Worker, keys: Ids, length: int) -> Floats:
    """The values of keys, all of one length."""
    out = np.full((len(keys), length), np.nan, dtype=np.float32)
    kv.pull(keys, out)
    return out


def on_threads(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` … `work(count - 1)` at the same time.

    A failure ends the process, for the other threads may wait for the one that failed.
    """
    results: dict[int, T] = {}

    def run(index: int) -> None:
        try:
            results[index] = work(index)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    threads = [Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[index] for index in range(count)]


def random_generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng(list(seed))


def skewed(rng: np.random.Generator, rows: int, count: int) -> Ids:
    """`count` row ids, with duplicates; small ids are frequent."""
    return np.minimum(rows * rng.random(count) ** 3, rows - 1).astype(np.int64)
