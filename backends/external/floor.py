"""A lower bound for all strategies: the computation of a step and the memory accesses to its rows.

One process trains on batches that are ready in memory. It gathers the rows of a batch with one
`index_select`, runs the dense layers forward and backward, updates them with the use case's optimizer, and
adds the rows' gradients, scaled by the learning rate, with one `index_add_`. Rows have no optimizer state,
duplicates are not searched, and nothing is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adabench.backends.external._shared import (
    PeerBackend,
    PlainSession,
    dense_optimizer,
    replace_tables,
    require_row_numbers,
)
from adabench.backends.interface import Options as BackendOptions
from adabench.backends.interface import WorkerContext
from adabench.usecases.interface import UseCase


class Floor(PeerBackend):
    name = "floor"

    def open(self, usecase: UseCase, context: WorkerContext, options: BackendOptions) -> FloorSession:
        require_row_numbers(self.name, usecase)
        return FloorSession(usecase, context)


class BareTable(nn.Module):
    """A table that is not a parameter of the model. Rows are gathered from it and added to it."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self._weight = weight
        self._read: list[tuple[Tensor, Tensor]] = []

    def forward(self, ids: Tensor) -> Tensor:
        flat = ids.reshape(-1)
        rows = self._weight.index_select(0, flat)
        if torch.is_grad_enabled():
            self._read.append((flat, rows.requires_grad_()))
        return rows.view(*ids.shape, -1)

    def update(self, lr: float) -> None:
        for ids, rows in self._read:
            assert rows.grad is not None
            self._weight.index_add_(0, ids, rows.grad, alpha=-lr)
        self._read.clear()


class FloorSession(PlainSession):
    def __init__(self, usecase: UseCase, context: WorkerContext) -> None:
        model = usecase.model()
        self._tables: list[BareTable] = []

        def make(name: str, table: nn.Embedding) -> BareTable:
            self._tables.append(BareTable(table.weight.detach()))
            return self._tables[-1]

        replace_tables(model, make)
        super().__init__(model, dense_optimizer(usecase, model))
        self._lr = float(self._optimizer.defaults["lr"])
        self._ready = list(usecase.loaders(context.index, context.world_size * context.workers).train)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return the batches of the loader's first epoch, in every epoch."""
        return iter(self._ready)

    def step(self, loss: Tensor) -> None:
        super().step(loss)
        for table in self._tables:
            table.update(self._lr)


BACKEND = Floor
