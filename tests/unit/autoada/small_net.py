"""A model of one table and one layer, and batches for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Net", "batches_of", "squared_error"]


class Net(nn.Module):
    """Gives a number per row id.

    Parameters
    ----------
    rows : int
        Of the table, ``rows.weight``.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(rows, 2)
        self.out = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.rows(ids)).squeeze(-1)


def batches_of(rows: int, steps: int, samples: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Row ids and labels, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(0, rows, (samples,), generator=generator), torch.rand(samples, generator=generator))
        for _ in range(steps)
    ]


def squared_error(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean squared error on a batch of `batches_of`."""
    ids, label = batch
    loss: Tensor = (model(ids) - label).square().mean()
    return loss
