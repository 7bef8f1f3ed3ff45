"""Gradients of the rows of one table, from the backward pass to the push."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import adaps
from autoada.parameters.server_rows import ServerRows
from autoada.sync.gradient_exchange import CombinedGradients, Gradients

AWAITED = 16
"""Pulls between two searches for pulled rows that no backward pass can reach any more."""
ReadGradient = tuple[Tensor, Tensor, int | None]
"""Keys, their gradients in host memory, and a key whose gradients are left out."""


class PulledRows(NamedTuple):
    """Rows that were pulled, and their keys.

    Attributes
    ----------
    values : Tensor
        One row for each key.
    keys : Tensor
        Keys, in host memory.
    distinct : bool
        Whether each key occurs once.
    ignored : int or None
        A key whose rows get no gradient.
    """

    values: Tensor
    keys: Tensor
    distinct: bool = True
    ignored: int | None = None


class RowGradients:
    """Follows which gradients pulled rows get, and collects them for a push.

    Parameters
    ----------
    rows : ServerRows
        The rows of the table.
    sums_in_server : bool
        Whether the server itself adds up the gradients of a row that was read several times. Otherwise every
        row is handed over once, as in coalesced sparse gradients.
    on_gradient : callable or None
        Called during the backward pass when a gradient of some rows has arrived.
    """

    def __init__(
        self, rows: ServerRows, sums_in_server: bool, on_gradient: Callable[[], None] | None
    ) -> None:
        self._rows = rows
        self._sums_in_server = sums_in_server
        self._on_gradient = on_gradient
        self._merged: Gradients | None = None
        self._collected: list[ReadGradient] = []
        self.awaited: list[PulledRows] = []
        """Rows that a backward pass may still give a gradient."""
        self._most_awaited = AWAITED

    def track(self, rows: PulledRows) -> None:
        """Follow which gradient these rows get."""
        rows.values.requires_grad_()
        if (arrived := self._on_gradient) is not None:
            rows.values.register_post_accumulate_grad_hook(lambda rows: arrived())
        if len(self.awaited) >= self._most_awaited:
            self._forget_unreachable()
            self._most_awaited = max(AWAITED, 2 * len(self.awaited))
        self.awaited.append(rows)

    @property
    def sum(self) -> Tensor | None:
        """Gradient of the rows that were read since the last push, each row once, shape ``(rows, ...)``."""
        merged = self._merge()
        return None if merged is None else merged.values

    def drop(self) -> None:
        """Forget gradients that have not been pushed."""
        self._merged = None
        for rows in self.awaited:
            rows.values.grad = None

    def replace(self, other: Gradients | None) -> Gradients | None:
        """Exchange the present gradient, keys and rows, for another one, and return it."""
        present, self._merged = self._merge(), other
        return present

    def collect(self, scale: float) -> None:
        """Collect the gradients for a push and start their copy to host memory."""
        if self._sums_in_server and scale == 1 and self._merged is None:
            self._collected = collected = []
            for values, keys, _, ignored in reversed(self.awaited):  # as a backward pass meets them
                if (gradient := values.grad) is not None:
                    collected.append((keys, gradient.contiguous(), ignored))
                    values.grad = None
            return
        self._collected = []
        merged, self._merged = self._merge(), None
        if merged is not None:
            scaled = merged.values if scale == 1 else scale * merged.values
            host = self._rows.transfer.start_to_host(scaled.contiguous())
            self._collected.append((merged.keys, host, None))

    def take(self) -> list[ReadGradient]:
        """The collected gradients, which have arrived in host memory; if there are any, they make a step."""
        taken, self._collected = self._collected, []
        if taken:
            self._rows.count_step()
        self._forget_unreachable()
        return taken

    def given(self) -> Gradients:
        """The collected gradients, each row once, which have arrived in host memory."""
        length = self._rows.length
        if not self._collected:
            return Gradients(torch.empty(0, dtype=torch.int64), torch.empty(0, length, dtype=torch.float32))
        ((keys, gradients, _),) = self._collected
        return Gradients(keys, gradients.reshape(-1, length))

    def put(self, combined: CombinedGradients) -> None:
        """Push this worker's part of the combined gradients of all workers."""
        self._collected = []
        if combined.anywhere:
            self._rows.count_step()
            for step in combined.steps:
                self._rows.worker.push_gradients(*step)
        self._forget_unreachable()

    def _forget_unreachable(self) -> None:
        """Forget rows that no backward pass can reach: only this list refers to them."""
        if self.awaited:
            awaited: list[Any] = self.awaited
            self.awaited = [
                rows for rows in awaited if rows.values._use_count() > 1 or rows.values.grad is not None
            ]

    def _merge(self) -> Gradients | None:
        """Add up all gradients that have arrived, so that each row has one."""
        arrived = [] if self._merged is None else [self._merged]
        for rows in self.awaited:
            if (gradient := rows.values.grad) is not None:
                arrived.append(self._each_row_once(rows, gradient))
                rows.values.grad = None
        if len(arrived) > 1:
            unique, inverse = adaps.deduplicate(torch.cat([keys for keys, _ in arrived]))
            positions = self._rows.on_device(inverse).split([len(keys) for keys, _ in arrived])
            sums = arrived[0].values.new_zeros(len(unique), *self._rows.row_shape)
            for (_, gradient), chosen in reversed(list(zip(arrived, positions, strict=True))):
                sums.index_add_(0, chosen, gradient)
            arrived = [Gradients(unique, sums)]
        self._merged = arrived[0] if arrived else None
        return self._merged

    def _each_row_once(self, rows: PulledRows, gradients: Tensor) -> Gradients:
        if rows.distinct:
            return Gradients(rows.keys, gradients)
        keys, sums = adaps.sum_by_key(rows.keys, gradients.contiguous(), rows.ignored)
        return Gradients(keys, sums.view(len(keys), *self._rows.row_shape))
