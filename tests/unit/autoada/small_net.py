"""Small models, batches for them, and a log of the intent that loaders signal for them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

import autoada
from autoada.model.wrapper import training_state_of

__all__ = ["PAIR_ROWS", "IntentLog", "Net", "Pairs", "batches_of", "pairs_of", "squared_error"]

PAIR_ROWS = 50


class Net(nn.Module):
    """A model that computes a number for each row id.

    Parameters
    ----------
    rows : int
        The number of rows of its table, ``rows.weight``.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(rows, 2)
        self.out = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.rows(ids)).squeeze(-1)


class Pairs(nn.Module):
    """Gives a number per pair of a user and an item, each with a table of `PAIR_ROWS` rows."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(PAIR_ROWS, 2)
        self.items = nn.Embedding(PAIR_ROWS, 2)
        self.out = nn.Linear(2, 1)

    def forward(self, users: Tensor, items: Tensor) -> Any:
        return self.out(self.users(users) * self.items(items.flip(0))).squeeze(-1)


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


def pairs_of(steps: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Users, items and labels of batches of six, always the same."""
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randint(0, PAIR_ROWS, (6,), generator=generator),
            torch.randint(0, PAIR_ROWS, (6,), generator=generator),
            torch.rand(6, generator=generator),
        )
        for _ in range(steps)
    ]


class IntentLog:
    """Logs the intent that a model's loops signal to its worker.

    Attributes
    ----------
    calls : list of (int, list of int, int)
        The clock of each signal, its keys in order, and the clock of their use.
    """

    def __init__(self, model: autoada.AdaModel) -> None:
        self.calls: list[tuple[int, list[int], int]] = []
        self._worker = model.worker
        training_state_of(model).worker = cast("Any", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def intent(self, keys: Tensor, start: int, end: int | None = None) -> None:
        self.calls.append((self.current_clock, sorted(keys.tolist()), start))
        self._worker.intent(keys, start, start + 1 if end is None else end)

    @property
    def starts(self) -> list[int]:
        """The clocks of use, in the order of the signals."""
        return [start for _, _, start in self.calls]

    @property
    def uses(self) -> list[tuple[list[int], int]]:
        """Keys and clocks of their use, in the order of the signals."""
        return [(keys, start) for _, keys, start in self.calls]

    @property
    def last(self) -> dict[int, list[int]]:
        """Keys of the last intent for each clock of use."""
        return {start: keys for _, keys, start in self.calls}
