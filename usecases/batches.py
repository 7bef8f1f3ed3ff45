"""Which worker trains on which samples, what makes up a batch, and the seed of what is drawn for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from adabench.usecases.protocol import DataError

__all__ = [
    "Draw",
    "OrderedBatches",
    "ShuffledBatches",
    "batch_loader",
    "generator_of",
    "require_worker",
    "scattered",
    "share_length",
    "strided_share",
]

T = TypeVar("T")


class Draw(NamedTuple):
    """The samples of a batch.

    Attributes
    ----------
    rows : Tensor
        Numbers of the samples, int64 (batch,).
    seed : int
        Of everything that is drawn for this batch, below 2^63: a function of the run's seed, the share, the
        epoch and the batch's number alone, so that it does not matter when or where a batch is fetched.
    """

    rows: Tensor
    seed: int


class ShuffledBatches(Sampler[Draw]):
    """Full batches of one share of the samples, shuffled by the seed, the share and the epoch's number.

    An epoch is one iteration; the first is number 0. What does not fill a batch waits for another epoch's
    shuffle.

    Parameters
    ----------
    rows : array
        Numbers of the share's samples, integers (n,).
    batch : int
        Samples of a batch.
    seed, share : int
        Non-negative.
    """

    def __init__(self, rows: NDArray[np.integer[Any]], batch: int, seed: int, share: int) -> None:
        self._rows = rows
        self._batch = batch
        self._seed = (seed, share)
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._rows) // self._batch

    def __iter__(self) -> Iterator[Draw]:
        generator = np.random.default_rng((*self._seed, self._epoch))
        self._epoch += 1
        order = torch.from_numpy(generator.permutation(self._rows)).long()
        seeds = generator.integers(1 << 63, size=len(self)).tolist()
        batches = order[: len(self) * self._batch].view(-1, self._batch).unbind()
        return map(Draw, batches, seeds)


class OrderedBatches(Sampler[Draw]):
    """All samples in their order, with the same draws in every epoch; the last batch may be smaller.

    Parameters
    ----------
    rows : array
        Numbers of the samples, integers (n,).
    batch : int
        Samples of a batch.
    """

    def __init__(self, rows: NDArray[np.integer[Any]], batch: int) -> None:
        self._rows = rows
        self._batch = batch

    def __len__(self) -> int:
        return -(-len(self._rows) // self._batch)

    def __iter__(self) -> Iterator[Draw]:
        for number, start in enumerate(range(0, len(self._rows), self._batch)):
            rows = self._rows[start : start + self._batch]
            yield Draw(torch.from_numpy(rows.astype(np.int64)), number)


def strided_share(count: int, rank: int, world: int, batch: int, what: str = "samples") -> NDArray[np.int64]:
    """Every `world`-th of `count` samples from number `rank` on; all shares have the same length.

    Raises
    ------
    ValueError
        If there is no such worker.
    DataError
        If the share does not fill a batch; `what` says what the samples are.
    """
    length = share_length(count, rank, world, batch, what)
    return np.arange(rank, length * world, world)


def share_length(count: int, rank: int, world: int, batch: int, what: str = "samples") -> int:
    """How many of `count` samples each of `world` workers trains on; raises as `strided_share` does."""
    require_worker(rank, world)
    if count // world < batch:
        raise DataError(
            f"the training split has {count} {what}: {world} workers with batches of {batch} need at least "
            f"{world * batch}"
        )
    return count // world


def require_worker(rank: int, world: int) -> None:
    """Raise `ValueError` unless worker `rank` is one of `world`."""
    if not 0 <= rank < world:
        raise ValueError(f"worker {rank} of {world}: the worker's number must be from 0 to {world - 1}")


def batch_loader(samples: Dataset[T], batches: Sampler[Draw]) -> DataLoader[T]:
    """A DataLoader that fetches a batch by ``samples[draw]`` and leaves the global random generator alone."""
    return DataLoader(
        samples,
        sampler=batches,
        batch_size=None,
        collate_fn=_as_fetched,
        generator=torch.Generator(),
    )


def generator_of(draw: Draw) -> torch.Generator:
    """The generator of what is drawn for a batch."""
    return torch.Generator().manual_seed(draw.seed)


def scattered(start: int, count: int) -> NDArray[np.uint64]:
    """Hashes of `count` numbers from `start` on: the finalizer of SplitMix64 (Steele et al., OOPSLA 2014).

    By them a sample's place in a file decides its split, whatever the seed of a run.
    """
    values = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _as_fetched(batch: T) -> T:
    return batch
