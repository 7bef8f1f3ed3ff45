"""A table of the parameter server in the place of a module's parameter."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

import adaps
from autoada.parameters.device_copy import Transfer
from autoada.prediction.row_set import Lookup, TableRows, host_ids
from autoada.sync.gradient_exchange import CombinedGradients, Gradients

# A read of few rows has to be cheap: the kernel without the way to it through Python, and memory of this
# dtype and on this device whatever the defaults of torch are.
_unsafe_view: Callable[[Tensor, tuple[int, ...]], Tensor] = torch.ops.aten._unsafe_view.default._op
_new_rows = torch.empty(0, dtype=torch.float32, device="cpu").new_empty
Read = tuple[str, Tensor | None]
"""Table and ids of one read; None stands for the whole table."""
Given = tuple[Tensor, Tensor, int | None]
"""Keys, their gradients, in host memory once they have arrived there, and a key whose gradients are none."""
CHUNK_FLOATS = 1 << 22
FEW_ROWS = 1 << 16
"""Keys of all rows of a table with at most so many are kept."""
AWAITED = 16
"""Pulls between two searches for those to which no backward pass leads any more."""


class Rows(NamedTuple):
    """Distinct rows of a table, and the position of each id of a read among them.

    ``values[inverse]`` are the rows of the ids; each row of `values` gets its gradients summed. `keys` are in
    host memory, the others on the model's device.
    """

    values: Tensor
    keys: Tensor
    inverse: Tensor


class PulledRows(NamedTuple):
    """Rows that were pulled, and their keys.

    Attributes
    ----------
    values : Tensor
        One for each key.
    keys : Tensor
        In host memory.
    distinct : bool
        Whether each key is there once.
    ignored : int or None
        A key whose rows get no gradient.
    """

    values: Tensor
    keys: Tensor
    distinct: bool = True
    ignored: int | None = None


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
    on_gradient : callable or None
        Called during the backward pass when a gradient of some rows has arrived, if anybody wants to know.
    applies_missed_steps : bool
        Whether rows that are used make up for the steps in which they had no gradient. Of several workers
        each would do it; there, such rows stay as they are.
    dtype : torch.dtype
        Of what the model reads, and of its gradients; the server has float32.
    alone : bool
        Whether there is no other node, so that a row is at hand as often as it is read.
    """

    def __init__(
        self,
        name: str,
        shape: torch.Size,
        worker: adaps.Worker,
        table: adaps.NodeTable,
        transfer: Transfer,
        reads: list[Read],
        on_gradient: Callable[[], None] | None,
        applies_missed_steps: bool,
        dtype: torch.dtype = torch.float32,
        alone: bool = False,
    ) -> None:
        self.name = name
        self.shape = shape
        self._row_shape = shape[1:]
        self._reads_as_asked = alone and transfer.direct and dtype is torch.float32
        self.training = True
        self._reads = reads
        self._worker = worker
        self._table = table
        self.first_key = table.first_key
        """The server's key of the first row."""
        self._transfer = transfer
        self._collected: list[Given] = []
        self._on_gradient = on_gradient
        self._applies_missed_steps = applies_missed_steps
        self.dtype = dtype
        self._expected: TableRows | None = None
        self._position = 0
        self._leaf: PulledRows | None = None
        self._whole: Tensor | None = None
        self._whole_noted = False
        self._all_keys: Tensor | None = None
        self.noting = True
        self._awaited: list[PulledRows] = []  # rows that a backward pass may still give a gradient
        self._most_awaited = AWAITED
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self.steps = 0
        """Pushes with a gradient so far, of this worker."""

    @property
    def is_local(self) -> bool:
        """Whether the server adds up the gradients of a row itself, as all rows are on this node."""
        return self._reads_as_asked

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
        if self._all_keys is not None:
            return self._all_keys
        keys = self.keys(torch.arange(self.shape[0]))
        if self.shape[0] <= FEW_ROWS:  # making them takes longer than reading the rows
            self._all_keys = keys
        return keys

    def prepare_sample(self, n: int, steps: int) -> int:
        """Have the server prepare a sample of `n` rows for the step after so many."""
        return self._worker.prepare_sample(self._table, n, self._worker.current_clock + steps)

    def drawn_rows(self, sample: int, n: int) -> Tensor:
        """The ids of the `n` rows of a sample."""
        rows = torch.empty(n, dtype=torch.int64)
        self._worker.pull_sample(sample, rows)
        return rows

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

    def read_as_asked(self, ids: Tensor, requires_grad: bool, padding: int | None = None) -> Tensor | None:
        """The row of each id, shape ``(*ids.shape, ...)``, as embeddings give it; None if `lookup` has to.

        Where all rows are at hand and nobody foresaw them, one pass over the server's memory makes what a
        model reads, and rows that are read twice are added up only where their gradients are applied. The row
        `padding` gets no gradient.
        """
        if not self._reads_as_asked or self._expected is not None or self._whole is not None:
            return None
        if self.noting and self.training:
            self._reads.append((self.name, ids))
        ids = host_ids(ids)
        shape = (*ids.shape, *self._row_shape)
        keys, rows = torch.empty_like(ids), _new_rows(shape)
        self._worker.pull_rows(self._table, ids, rows, keys, self._applies_missed_steps)
        if not (requires_grad and self.training and torch.is_grad_enabled()):
            return rows
        ignored = None if padding is None else self.first_key + padding % self.shape[0]
        self._track(PulledRows(rows, keys, False, ignored))
        return _unsafe_view(rows, shape)  # models may change it in place, which a leaf refuses

    def lookup(self, ids: Tensor, requires_grad: bool) -> Rows:
        """The rows of `ids`; IndexError for one that does not exist."""
        track = requires_grad and self.training and torch.is_grad_enabled()
        expected = self._expected  # once: another thread may hand out the next batch
        known = self._next_expected(expected, ids)
        if self.noting and self.training:
            self._reads.append((self.name, ids if known is None else known.ids))
        if self._whole is not None and self._whole.requires_grad == track:  # nothing more to pull
            if known is None and ids.numel() > 0:
                self._table.keys(torch.stack(ids.aminmax()).to("cpu", torch.int64))
            return Rows(self._whole, self.all_keys, self._on_device(ids.long()))
        if known is not None:
            assert expected is not None
            keys = expected.keys
            leaf = self._leaf
            if leaf is None or leaf.keys is not keys or leaf.values.requires_grad != track:
                leaf = self._leaf = PulledRows(self._pull(keys, track), keys)
            inverse = known.inverse
            if inverse.shape != ids.shape:
                inverse = inverse.view(ids.shape)
            return Rows(leaf.values, keys, self._on_device(inverse))
        unique, inverse = adaps.deduplicate(host_ids(ids))
        keys = self._table.keys(unique)
        return Rows(self._pull(keys, track), keys, self._on_device(inverse))

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
        if self._awaited:
            self._merge()
        return self._gradients[0][1] if self._gradients else None

    def drop_gradient(self) -> None:
        """Forget what has not been pushed."""
        self._gradients.clear()
        self._forget_gradients()

    def exchange_gradient(self, other: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
        """Put another gradient, keys and rows, in the place of the present one, and give that."""
        self._merge()
        present = self._gradients[0] if self._gradients else None
        self._gradients = [] if other is None else [other]
        return present

    def collect(self, scale: float, *, each_once: bool = False) -> None:
        """Take the gradients, to be pushed: each row once, as coalesced sparse gradients have it.

        The server may still have to add some up, unless they are wanted `each_once`.
        """
        if self._reads_as_asked and scale == 1 and not self._gradients and not each_once:
            self._collected = collected = []
            for values, keys, _, ignored in reversed(self._awaited):  # as a backward pass meets them
                if (gradient := values.grad) is not None:
                    collected.append((keys, gradient.contiguous(), ignored))
                    values.grad = None
            return
        self._merge()
        to_host = self._transfer.start_to_host
        self._collected = [
            (keys, to_host((gradients if scale == 1 else scale * gradients).contiguous()), None)
            for keys, gradients in self._gradients
        ]
        self._gradients.clear()

    def take(self) -> list[Given]:
        """What was collected and has arrived in host memory: the gradients of a step, which now is made.

        If the table is `is_local`, what each read got; else each row is there once.
        """
        taken = self._collected
        if taken:
            self._collected = []
            self.steps += 1  # as torch.optim counts: a step without a gradient for the parameter is none
            self._table.set_step(self.steps, idle_rows=self._applies_missed_steps)
        self._leaf = self._whole = None
        if self._awaited:
            self._forget_unreachable()
        return taken

    def given(self) -> Gradients:
        """What was collected, each row once, and has arrived in host memory."""
        length = prod(self._row_shape)
        if not self._collected:
            return Gradients(torch.empty(0, dtype=torch.int64), torch.empty(0, length, dtype=torch.float32))
        (one,) = self._collected
        return Gradients(one[0], one[1].reshape(-1, length))

    def put(self, combined: CombinedGradients) -> None:
        """Hand over this worker's part of what the gradients of all were combined to."""
        self._collected = []
        if combined.anywhere:
            self.steps += 1
            self._table.set_step(self.steps, idle_rows=self._applies_missed_steps)
            for step in combined.steps:
                self._worker.push_gradients(*step)
        self.forget_rows()
        if self._awaited:
            self._forget_unreachable()

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
        if self._applies_missed_steps:
            self._table.catch_up(keys)

    def resume(self, same_workers: bool) -> None:
        """Go on from a checkpoint, of this number of workers or of another."""
        self.forget_rows()
        self._table.set_step(self.steps, idle_rows=self._applies_missed_steps)
        if self._applies_missed_steps and not same_workers:
            self._table.forget_missed()  # several workers let rows miss steps

    # Corners of nn.Embedding

    def position(self, rows: Rows, row: int) -> int | None:
        """Where row number `row` is among `rows`."""
        found = (rows.keys == self.first_key + row % self.shape[0]).nonzero()
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

    def _next_expected(self, expected: TableRows | None, ids: Tensor) -> Lookup | None:
        if not self.training or expected is None or self._position >= len(expected.lookups):
            return None
        lookup = expected.lookups[self._position]
        same_kind = lookup.ids.dtype is ids.dtype and lookup.ids.numel() == ids.numel()
        if lookup.ids is not ids and not (same_kind and _same_numbers(lookup.ids, ids)):
            return None  # something unforeseen; what was foreseen may still come
        self._position += 1
        return lookup

    def _on_device(self, positions: Tensor) -> Tensor:
        return positions if self._transfer.direct else positions.to(self.device, non_blocking=True)

    def _pull(self, keys: Tensor, track: bool) -> Tensor:
        if self._applies_missed_steps:
            self._table.catch_up(keys)
        count = keys.shape[0]
        rows = host = self._transfer.host_array(count, *self._row_shape)
        self._worker.pull(keys, host if len(self._row_shape) == 1 else host.view(count, -1))
        if not self._transfer.direct:
            rows = self._transfer.to_device(host)
        if self.dtype is not torch.float32:
            rows = rows.to(self.dtype)
        if track:
            self._track(PulledRows(rows, keys))
        return rows

    def _track(self, rows: PulledRows) -> None:
        """Follow which gradient these rows get."""
        rows.values.requires_grad_()
        if (arrived := self._on_gradient) is not None:
            rows.values.register_post_accumulate_grad_hook(lambda rows: arrived())
        if len(self._awaited) >= self._most_awaited:
            self._forget_unreachable()
            self._most_awaited = max(AWAITED, 2 * len(self._awaited))
        self._awaited.append(rows)

    def _forget_unreachable(self) -> None:
        """Forget rows to which no backward pass leads any more, as nobody else has them."""
        awaited: list[Any] = self._awaited
        # there is a graph with it, or one has led to it
        self._awaited = [
            rows for rows in awaited if rows.values._use_count() > 1 or rows.values.grad is not None
        ]

    def _whole_table(self, track: bool) -> Tensor:
        if self._whole is None or self._whole.requires_grad != track:
            self._whole = self._pull(self.all_keys, track)
        return self._whole

    def _forget_gradients(self) -> None:
        for rows in self._awaited:
            rows.values.grad = None

    def _merge(self) -> None:
        """Add up what has arrived, so that each row has one gradient."""
        for rows in self._awaited:
            if (gradient := rows.values.grad) is not None:
                self._gradients.append(self._each_row_once(rows, gradient))
                rows.values.grad = None
        if len(self._gradients) < 2:
            return
        unique, inverse = adaps.deduplicate(torch.cat([keys for keys, _ in self._gradients]))
        positions = self._on_device(inverse).split([len(keys) for keys, _ in self._gradients])
        merged = self._gradients[0][1].new_zeros(len(unique), *self._row_shape)
        for (_, gradient), chosen in reversed(list(zip(self._gradients, positions, strict=True))):
            merged.index_add_(0, chosen, gradient)
        self._gradients = [(unique, merged)]

    def _each_row_once(self, rows: PulledRows, gradients: Tensor) -> tuple[Tensor, Tensor]:
        if rows.distinct:
            return rows.keys, gradients
        keys, sums = adaps.sum_by_key(rows.keys, gradients.contiguous(), rows.ignored)
        return keys, sums.view(len(keys), *self._row_shape)


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether the elements are the same in order, whatever the shapes and devices."""
    if a.shape != b.shape:
        a, b = a.reshape(-1), b.reshape(-1)
    return torch.equal(a, b if a.device == b.device else b.to(a.device))
