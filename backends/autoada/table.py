"""A table of the parameter server in the place of a module's parameter."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

import adaps
from autoada.rows import Lookup, TableRows, unique_rows
from autoada.transfer import Transfer

Read = tuple[str, Tensor | None]
"""Table and ids of one read; None stands for the whole table."""
CHUNK_FLOATS = 1 << 22


class Rows(NamedTuple):
    """Distinct rows of a table, and the position of each id of a read among them.

    ``values[inverse]`` are the rows of the ids; each row of `values` gets its gradients summed. `keys` are in
    host memory, the others on the model's device.
    """

    values: Tensor
    keys: Tensor
    inverse: Tensor


class RemoteTable:
    """Rows of one table, pulled when forward reads them, and their gradients, kept until they are pushed.

    Parameters
    ----------
    name : str
        The parameter's qualified name.
    shape : torch.Size
        The parameter's shape; the first dimension counts rows.
    worker : adaps.Worker
        Whose calls are used.
    table : adaps.NodeTable
        The server's table.
    transfer : Transfer
        To the device where rows are wanted.
    reads : list
        Where reads in training mode are noted, as long as `noting` is true.
    on_gradient : callable
        Called during the backward pass when a gradient of some rows has arrived.
    catches_up : bool
        Whether rows that are used make up for the steps in which they had no gradient. Of several workers
        each would do it; there, such rows stay as they are.
    dtype : torch.dtype
        Of what the model reads, and of its gradients; the server has float32.
    """

    def __init__(
        self,
        name: str,
        shape: torch.Size,
        worker: Any,
        table: Any,
        transfer: Transfer,
        reads: list[Read],
        on_gradient: Callable[[], None],
        catches_up: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.name = name
        self.shape = shape
        self.training = True
        self._reads = reads
        self._worker = worker
        self._table = table
        self._transfer = transfer
        self._pushed: list[tuple[Tensor, Tensor]] = []
        self._on_gradient = on_gradient
        self._catches_up = catches_up
        self.dtype = dtype
        self._expected: TableRows | None = None
        self._position = 0
        self._leaf: Tensor | None = None
        self._whole: Tensor | None = None
        self._whole_noted = False
        self.noting = True
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self.steps = 0
        """Pushes with a gradient so far, of this worker."""

    @property
    def device(self) -> torch.device:
        """Where rows arrive."""
        return self._transfer.device

    def keys(self, ids: Tensor) -> Tensor:
        """The server's keys of row ids; IndexError for a row that does not exist."""
        keys: Tensor = self._table.keys(ids)
        return keys

    @property
    def all_keys(self) -> Tensor:
        """Those of all rows."""
        return self.keys(torch.arange(self.shape[0]))

    # One step

    def expect(self, rows: TableRows | None) -> None:
        """Rows that the forward passes of the next batch are predicted to read."""
        self._expected = rows
        self._position = 0
        self._whole_noted = False
        self.forget_rows()

    def forget_rows(self) -> None:
        """Pull rows anew when they are read again."""
        self._leaf = self._whole = None

    def lookup(self, ids: Tensor, requires_grad: bool) -> Rows:
        """The rows of `ids`; IndexError for one that does not exist."""
        track = requires_grad and self.training and torch.is_grad_enabled()
        known = self._next_expected(ids)
        if self.noting and self.training:
            self._reads.append((self.name, ids if known is None else known.ids))
        if (
            self._whole is not None and self._whole.requires_grad == track
        ):  # nothing more to pull in this step
            if known is None and ids.numel() > 0:
                self._table.keys(torch.stack(ids.aminmax()).to("cpu", torch.int64))
            return Rows(self._whole, self.all_keys, self._on_device(ids.long()))
        if known is not None:
            assert self._expected is not None
            keys = self._expected.keys
            if self._leaf is None or self._leaf.requires_grad != track:
                self._leaf = self._pull(keys, track)
            inverse = known.inverse
            if inverse.shape != ids.shape:
                inverse = inverse.view(ids.shape)
            return Rows(self._leaf, keys, self._on_device(inverse))
        unique, (lookup,) = unique_rows([ids])
        keys = self._table.keys(unique)
        return Rows(self._pull(keys, track), keys, self._on_device(lookup.inverse))

    def whole(self, requires_grad: bool) -> Tensor:
        """All rows, with the table's own shape."""
        if self.noting and self.training and not self._whole_noted:
            self._whole_noted = True
            self._reads.append((self.name, None))
        return self._whole_table(requires_grad and self.training and torch.is_grad_enabled())

    # Gradients

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of the rows that were read since the last push, each row once, shape (rows, ...)."""
        self._merge()
        return self._gradients[0][1] if self._gradients else None

    def drop_gradient(self) -> None:
        """Forget what has not been pushed."""
        self._gradients.clear()

    def collect(self) -> None:
        """Take the gradients, to be pushed: each row once, as coalesced sparse gradients have it."""
        self._merge()
        self._pushed = [
            (
                keys,
                self._transfer.start_to_host(
                    gradient if gradient.dim() == 2 else gradient.reshape(keys.shape[0], -1)
                ),
            )
            for keys, gradient in self._gradients
        ]
        self._gradients.clear()

    def push(self) -> None:
        """Hand over what was collected and has arrived in host memory."""
        if self._pushed:
            self.steps += 1  # as torch.optim counts: a step without a gradient for the parameter is none
            self._table.set_step(self.steps, idle_rows=self._catches_up)
        for keys, gradient in self._pushed:
            self._worker.push_gradients(keys, gradient)
        self._pushed.clear()
        self.forget_rows()

    # Whole tables

    def read(self) -> Tensor:
        """A copy of the whole table, in host memory."""
        self.catch_up()
        rows = torch.empty(self.shape, dtype=torch.float32)
        self._worker.pull(self.all_keys, rows.view(len(rows), -1))
        return rows.to(self.dtype)

    def write(self, values: Tensor) -> None:
        """Overwrite the whole table."""
        self.catch_up()  # what was to come of the values before is not to change these
        rows = max(1, CHUNK_FLOATS // max(1, prod(self.shape[1:])))
        flat = values.detach().to("cpu", torch.float32).reshape(self.shape[0], -1)
        for start in range(0, self.shape[0], rows):
            part = flat[start : start + rows].contiguous()
            self._worker.set(self._table.keys(torch.arange(start, start + len(part))), part)
        self.forget_rows()

    def catch_up(self, keys: Tensor | None = None) -> None:
        """Have rows, or all of them, make up for the steps in which they had no gradient."""
        if self._catches_up:
            self._table.catch_up(keys)

    def resume(self, same_workers: bool) -> None:
        """Go on from a checkpoint, of this number of workers or of another."""
        self.forget_rows()
        self._table.set_step(self.steps, idle_rows=self._catches_up)
        if self._catches_up and not same_workers:
            self._table.forget_missed()  # several workers let rows miss steps

    # Corners of nn.Embedding

    def position(self, rows: Rows, row: int) -> int | None:
        """Where row number `row` is among `rows`."""
        found = (rows.keys == self._table.first_key + row % self.shape[0]).nonzero()
        return int(found[0]) if len(found) else None

    def shrink_norms(self, rows: Rows, max_norm: float, norm_type: float) -> None:
        """Shorten rows that are longer than `max_norm`, here and, in training, in the server."""
        with torch.no_grad():
            norms = rows.values.flatten(1).norm(norm_type, dim=1)
            long = (norms > max_norm).nonzero()[:, 0]
            if len(long) == 0:
                return
            scale = max_norm / (norms[long] + 1e-7)  # torch's own guard against a division by zero
            before = rows.values[long]
            after = before * scale.reshape(-1, *[1] * (before.dim() - 1))
            if self.training:
                self._worker.push(
                    rows.keys[long.cpu()], (after - before).reshape(len(long), -1).cpu().float()
                )
            rows.values[long] = after

    # Helpers

    def _next_expected(self, ids: Tensor) -> Lookup | None:
        if not self.training or self._expected is None or self._position >= len(self._expected.lookups):
            return None
        lookup = self._expected.lookups[self._position]
        same_kind = lookup.ids.dtype is ids.dtype and lookup.ids.numel() == ids.numel()
        if lookup.ids is not ids and not (same_kind and _same_numbers(lookup.ids, ids)):
            return None  # something unforeseen; what was foreseen may still come
        self._position += 1
        return lookup

    def _on_device(self, positions: Tensor) -> Tensor:
        return positions if self._transfer.direct else positions.to(self.device, non_blocking=True)

    def _pull(self, keys: Tensor, track: bool) -> Tensor:
        self.catch_up(keys)
        count = keys.shape[0]
        host = self._transfer.host_array(count, *self.shape[1:])
        self._worker.pull(keys, host if host.dim() == 2 else host.view(count, -1))
        rows = self._transfer.to_device(host)
        if self.dtype is not torch.float32:
            rows = rows.to(self.dtype)
        return self._tracked(rows, keys) if track else rows

    def _tracked(self, rows: Tensor, keys: Tensor) -> Tensor:
        def arrived(leaf: Tensor) -> None:
            assert leaf.grad is not None
            self._gradients.append((keys, leaf.grad))
            leaf.grad = None
            self._on_gradient()

        rows.requires_grad_()
        rows.register_post_accumulate_grad_hook(arrived)
        return rows

    def _whole_table(self, track: bool) -> Tensor:
        if self._whole is None or self._whole.requires_grad != track:
            self._whole = self._pull(self.all_keys, track)
        return self._whole

    def _merge(self) -> None:
        if len(self._gradients) < 2:
            return
        keys = torch.cat([keys for keys, _ in self._gradients])
        gradients = torch.cat([gradient for _, gradient in self._gradients])
        unique, inverse = adaps.deduplicate(keys)
        merged = gradients.new_zeros(len(unique), *gradients.shape[1:])
        merged.index_add_(0, self._on_device(inverse), gradients)
        self._gradients = [(unique, merged)]


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether the elements are the same in order, whatever the shapes and devices."""
    if a.shape != b.shape:
        a, b = a.reshape(-1), b.reshape(-1)
    return torch.equal(a, b if a.device == b.device else b.to(a.device))
