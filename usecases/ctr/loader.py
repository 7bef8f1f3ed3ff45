"""Batches of a split: a torch DataLoader that fetches each batch with one indexing operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

T = TypeVar("T")


class Batch(NamedTuple):
    """Samples of one step: dense float32 (batch, 13), ids int64 (batch, 26), label float32 (batch,)."""

    dense: Tensor
    ids: Tensor
    label: Tensor


class Split(Dataset[Batch]):
    """Samples by their row numbers: ``split[rows]`` for an int64 tensor of rows is a `Batch`.

    Parameters
    ----------
    samples : Batch
        Of all rows; ids may be int32 and labels uint8, as in the cache's files.
    """

    def __init__(self, samples: Batch) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples.label)

    def __getitem__(self, rows: Tensor) -> Batch:
        dense, ids, label = (column.index_select(0, rows) for column in self.samples)
        return Batch(dense, ids.long(), label.float())


class ShuffledBatches(Sampler[Tensor]):
    """Row numbers of full batches of one share of `count` rows, shuffled by the seed and the epoch's number.

    An epoch is one iteration; the first is number 0. A share is every `shares`-th row from row `share`
    on; all have the same length. What does not fill a batch waits for another epoch's shuffle.
    """

    def __init__(self, count: int, batch: int, seed: int, share: int, shares: int) -> None:
        self._rows = np.arange(share, count - count % shares, shares)
        self._batch = batch
        self._seed = (seed, share)
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._rows) // self._batch

    def __iter__(self) -> Iterator[Tensor]:
        generator = np.random.default_rng((*self._seed, self._epoch))
        self._epoch += 1
        order = torch.from_numpy(generator.permutation(self._rows))
        return iter(order[: len(self) * self._batch].view(-1, self._batch).unbind())


class OrderedBatches(Sampler[Tensor]):
    """Row numbers of all `count` rows in their order; the last batch may be smaller."""

    def __init__(self, count: int, batch: int) -> None:
        rows = torch.arange(count)
        self._batches = [rows[start : start + batch] for start in range(0, count, batch)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._batches)


def batch_loader(split: Split, batches: Sampler[Tensor]) -> DataLoader[Batch]:
    """A DataLoader that leaves the global random generator alone."""
    return DataLoader(
        split, sampler=batches, batch_size=None, collate_fn=_as_fetched, generator=torch.Generator()
    )


def _as_fetched(batch: T) -> T:
    return batch
