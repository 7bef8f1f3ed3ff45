"""Samples of a split. Each batch is fetched with one indexing operation."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from adabench.usecases.common.batches import Draw


class Batch(NamedTuple):
    """Samples of one step: dense float32 (batch, 13), ids int64 (batch, 26), label float32 (batch,)."""

    dense: Tensor
    ids: Tensor
    label: Tensor


class Split(Dataset[Batch]):
    """Samples by their row numbers. ``split[draw]`` is a `Batch` of the rows of a `Draw`.

    Parameters
    ----------
    samples : Batch
        Samples of all rows. Ids can be int32 and labels uint8, as in the cache's files.
    """

    def __init__(self, samples: Batch) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples.label)

    def __getitem__(self, draw: Draw) -> Batch:
        dense, ids, label = (column.index_select(0, draw.rows) for column in self.samples)
        return Batch(dense, ids.long(), label.float())
