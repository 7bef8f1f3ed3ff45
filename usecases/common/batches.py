"""Division of samples among workers, composition of batches, and seeds for random draws."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from adabench.usecases.common.optimizers import make_optimizer
from adabench.usecases.interface import DataError, Params

HELD_OUT_ONE_IN = 20
"""One in this number of samples is used for validation, and one for tests, if data have no splits."""

T = TypeVar("T")
P = TypeVar("P", bound=Params)
U = TypeVar("U", bound="DealsBatches[Any]")


class Draw(NamedTuple):
    """The samples of a batch, and a seed for its random draws.

    Attributes
    ----------
    rows : Tensor
        Indices of the samples, int64 (batch,).
    seed : int
        Seed for everything that is drawn for this batch, below 2^63. It depends only on the run's seed, the
        share, the epoch and the batch's index, not on the time or place where the batch is fetched.
    """

    rows: Tensor
    seed: int


class ShuffledBatches(Sampler[Draw]):
    """Full batches of one share of the samples, shuffled by the seed, the share and the epoch's number.

    An epoch is one iteration, and the first one has number 0. Samples that do not fill a batch are left out
    of the epoch.

    Parameters
    ----------
    rows : array
        Indices of the share's samples, integers (n,).
    batch : int
        Number of samples of a batch.
    seed, share : int
        Seed and index of the share, not negative.
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
    """All samples in order, with equal draws in every epoch. The last batch may be smaller.

    Parameters
    ----------
    rows : array
        Indices of the samples, integers (n,).
    batch : int
        Number of samples of a batch.
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


class DealsBatches(Generic[P]):
    """Base class of use cases that can give workers batches of different sizes: see `Dealt`."""

    _batches: tuple[int, ...] = ()
    _fingerprint: str

    def __init__(self, params: P, seed: int) -> None:
        self._params, self._seed = params, seed

    @property
    def params(self) -> P:
        """Parameters of the use case."""
        return self._params

    @property
    def fingerprint(self) -> str:
        """Digest of the data."""
        return self._fingerprint

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of the parameters `lr` and, if the use case has it, `optimizer`."""
        return make_optimizer(model, self.params.lr, getattr(self.params, "optimizer", "adagrad"))

    def with_batches(self: U, batches: Sequence[int]) -> U:
        """Return an equal task with these numbers of samples in a step of each worker."""
        dealt = copy.copy(self)
        dealt._batches = tuple(batches)
        return dealt

    def _sizes(self, rank: int, world: int) -> tuple[int, ...]:
        """Return the number of samples in a step of each of `world` workers."""
        require_worker(rank, world)
        sizes = self._batches or (self.params.batch,) * world
        if len(sizes) != world:
            raise ValueError(f"{world} workers, but batches were assigned to {len(sizes)}")
        return sizes


def strided_share(count: int, rank: int, sizes: Sequence[int], what: str = "samples") -> NDArray[np.int64]:
    """Return the samples of worker `rank` if workers take turns in proportion to `sizes`.

    Parameters
    ----------
    count, rank : int
        Number of samples, and index of the worker.
    sizes : sequence of int
        Number of samples in a step of each worker. With equal sizes, each worker has every n-th sample.
    what : str
        Name of the samples for messages.

    Raises
    ------
    DataError
        If there are fewer samples than in one step.
    """
    length = share_lengths(count, sizes, what)[rank]
    turns = [((place + 0.5) / size, worker) for worker, size in enumerate(sizes) for place in range(size)]
    own = np.array([place for place, (_, worker) in enumerate(sorted(turns)) if worker == rank])
    rounds = np.arange(0, count, len(turns))
    rows: NDArray[np.int64] = (rounds[:, None] + own).ravel()
    return rows[: np.searchsorted(rows, count)][:length]


def share_lengths(count: int, sizes: Sequence[int], what: str = "samples") -> list[int]:
    """Return the number of the `count` samples for each worker; raises like `strided_share`.

    All workers make equal numbers of full batches of `sizes`.
    """
    step = sum(sizes)
    if count < step:
        equal = len(set(sizes)) == 1
        batches = str(sizes[0]) if equal else " and ".join(map(str, sizes))
        raise DataError(
            f"the training split has {count} {what}: {len(sizes)} workers with batches of {batches} need at "
            f"least {step}"
        )
    return [count * size // step for size in sizes]


def numbers_of_ranges(
    starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all numbers of some ranges, each with the index of its range: two arrays, index and number."""
    lengths = ends - starts
    index = np.repeat(np.arange(len(starts)), lengths)
    return index, np.arange(len(index)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)


def require_worker(rank: int, world: int) -> None:
    """Raise `ValueError` unless `rank` is an index of `world` workers."""
    if not 0 <= rank < world:
        raise ValueError(f"worker {rank} of {world}: the worker's number must be from 0 to {world - 1}")


def batch_loader(samples: Dataset[T], batches: Sampler[Draw]) -> DataLoader[T]:
    """Return a DataLoader that fetches ``samples[draw]`` and does not use the global random generator."""
    return DataLoader(
        samples, sampler=batches, batch_size=None, collate_fn=_as_fetched, generator=torch.Generator()
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate a model in the context: without gradients. Then the model is in training mode again."""
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train()


def generator_of(draw: Draw) -> torch.Generator:
    """Return the random generator for a batch's draws."""
    return torch.Generator().manual_seed(draw.seed)


def scattered(start: int, count: int) -> NDArray[np.uint64]:
    """Return hashes of `count` numbers from `start` on: SplitMix64's finalizer (Steele et al., OOPSLA 2014).

    They determine a sample's split by its index in a file, independent of the seed of a run.
    """
    values = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def split_masks(start: int, count: int) -> tuple[NDArray[np.bool_], ...]:
    """Return masks of the training, validation and test samples of the `count` samples from `start` on."""
    buckets = scattered(start, count) % np.uint64(HELD_OUT_ONE_IN)
    return buckets > 1, buckets == 0, buckets == 1


def _as_fetched(batch: T) -> T:
    return batch
