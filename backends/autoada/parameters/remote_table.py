"""A table of the parameter server in the place of a module's parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import adaps
from autoada.parameters.row_gradients import PulledRows, ReadGradient, RowGradients
from autoada.parameters.server_rows import ServerRows
from autoada.prediction.row_set import Lookup, TableRows, host_ids
from autoada.prediction.source_location import user_location
from autoada.sync.gradient_exchange import CombinedGradients, Gradients

# A read of few rows has to be cheap: the kernel without the way to it through Python, and memory of this
# dtype and on this device whatever the defaults of torch are.
_unsafe_view: Callable[[Tensor, tuple[int, ...]], Tensor] = torch.ops.aten._unsafe_view.default._op
_new_rows = torch.empty(0, dtype=torch.float32, device="cpu").new_empty
Read = tuple[str, Tensor | None]
"""Table and ids of one read; None stands for the whole table."""


class Rows(NamedTuple):
    """Distinct rows of a table, and the position of each id of a read among them.

    ``values[inverse]`` are the rows of the ids; each row of `values` gets its gradients summed. `keys` are in
    host memory, the others on the model's device.
    """

    values: Tensor
    keys: Tensor
    inverse: Tensor


class RemoteTable:
    """Looks up rows of one table for the model's forward passes.

    Rows that a batch is expected to read are pulled together at the first lookup, and kept until the step.

    Parameters
    ----------
    rows : ServerRows
        The table's rows in the server.
    reads : list of Read
        Reads in training mode are appended while `noting` is true.
    on_gradient : callable or None
        Called during the backward pass when a gradient of some rows has arrived.
    alone : bool
        Whether there is no other node.
    combines : bool
        Whether gradients are combined with those of other workers, so that each row may occur only once.

    Attributes
    ----------
    rows : ServerRows
        Access to the whole table, and its steps.
    gradients : RowGradients
        Gradients of the rows that were looked up.
    is_local : bool
        Whether every lookup reads the server's memory on this node as it is. The server then also adds up the
        gradients of a row that was read several times.
    training : bool
        Whether the model is in training mode.
    noting : bool
        Whether reads are noted.
    pulled_at : str
        Place of a read outside of the model's calls that pulled the whole table; empty if there was none.
    """

    def __init__(
        self,
        rows: ServerRows,
        reads: list[Read],
        on_gradient: Callable[[], None] | None,
        *,
        alone: bool,
        combines: bool,
    ) -> None:
        self.name = rows.name
        self.rows = rows
        self.shape = rows.shape
        self.device = rows.transfer.device
        self.is_local = alone and rows.transfer.direct and rows.dtype is torch.float32
        self.gradients = RowGradients(rows, self.is_local and not combines, on_gradient)
        self.training = True
        self.noting = True
        self.pulled_at = ""
        self._reads = reads
        self._expected: TableRows | None = None
        self._position = 0
        self._pulled: PulledRows | None = None  # the expected rows
        self._whole: Tensor | None = None
        self._whole_noted = False

    @property
    def first_key(self) -> int:
        """The server's key of the first row."""
        return self.rows.first_key

    @property
    def all_keys(self) -> Tensor:
        """Keys of all rows, in row order."""
        return self.rows.all_keys

    def keys(self, ids: Tensor) -> Tensor:
        """The server's keys of row ids; IndexError for a row that does not exist."""
        keys: Tensor = self.rows.table.keys(ids)
        return keys

    # One step: expect, lookups, collect, then take or put

    def expect(self, rows: TableRows | None) -> None:
        """Set the rows that the forward passes of the next batch are predicted to read."""
        self._expected = rows
        self._position = 0
        self._whole_noted = False
        self.forget_rows()

    def forget_rows(self) -> None:
        """Pull rows anew when they are read again."""
        self._pulled = self._whole = None

    def read_as_asked(self, ids: Tensor, requires_grad: bool, padding: int | None = None) -> Tensor | None:
        """The row of each id, shape ``(*ids.shape, ...)``, as embeddings give it; None if `lookup` is needed.

        This works if the table is local and no rows are expected. One pass over the server's memory then
        makes the tensor that the model reads. Gradients of a row that is read twice are added up where they
        are applied. The row `padding` gets no gradient.
        """
        if not self.is_local or self._expected is not None or self._whole is not None:
            return None
        if self.noting and self.training:
            self._reads.append((self.name, ids))
        source = self.rows
        ids = host_ids(ids)
        shape = (*ids.shape, *source.row_shape)
        keys, rows = torch.empty_like(ids), _new_rows(shape)
        source.worker.pull_rows(source.table, ids, rows, keys, source.applies_missed_steps)
        if not self._tracks(requires_grad):
            return rows
        ignored = None if padding is None else self._key_of(padding)
        self.gradients.track(PulledRows(rows, keys, False, ignored))
        return _unsafe_view(rows, shape)  # models may change it in place, which a leaf refuses

    def lookup(self, ids: Tensor, requires_grad: bool) -> Rows:
        """The rows of `ids`; IndexError for one that does not exist."""
        track = self._tracks(requires_grad)
        expected = self._expected  # once: another thread may hand out the next batch
        known = self._next_expected(expected, ids)
        if self.noting and self.training:
            self._reads.append((self.name, ids if known is None else known.ids))
        on_device = self.rows.on_device
        if self._whole is not None and self._whole.requires_grad == track:  # nothing more to pull
            if known is None and ids.numel() > 0:
                self.keys(torch.stack(ids.aminmax()).to("cpu", torch.int64))
            return Rows(self._whole, self.all_keys, on_device(ids.long()))
        if known is not None:
            assert expected is not None
            pulled = self._pulled
            if pulled is None or pulled.keys is not expected.keys or pulled.values.requires_grad != track:
                pulled = self._pulled = self._pull(expected.keys, track)
            inverse = known.inverse
            if inverse.shape != ids.shape:
                inverse = inverse.view(ids.shape)
            return Rows(pulled.values, pulled.keys, on_device(inverse))
        unique, inverse = adaps.deduplicate(host_ids(ids))
        pulled = self._pull(self.keys(unique), track)
        return Rows(pulled.values, pulled.keys, on_device(inverse))

    def whole(self, requires_grad: bool) -> Tensor:
        """All rows, with the table's own shape."""
        if self.noting and self.training and not self._whole_noted:
            self._whole_noted = True
            self._reads.append((self.name, None))
        track = self._tracks(requires_grad)
        if self._whole is None or self._whole.requires_grad != track:
            self._whole = self._pull(self.all_keys, track).values
            if self.training and not self.noting:
                self.pulled_at = user_location()
        return self._whole

    def collect(self, scale: float) -> None:
        """Take the gradients from the rows and start their copy to host memory."""
        self.gradients.collect(scale)

    def given(self) -> Gradients:
        """The collected gradients, each row once, which have arrived in host memory."""
        return self.gradients.given()

    def take(self) -> list[ReadGradient]:
        """The collected gradients of a step, and forget the rows that the step changes."""
        self.forget_rows()
        return self.gradients.take()

    def put(self, combined: CombinedGradients) -> None:
        """Push this worker's part of the combined gradients, and forget the rows that the step changes."""
        self.forget_rows()
        self.gradients.put(combined)

    def write(self, values: Tensor) -> None:
        """Overwrite the whole table."""
        self.rows.write(values)
        self.forget_rows()

    # Options of nn.Embedding

    def position(self, rows: Rows, row: int) -> int | None:
        """Position of row number `row` among `rows`, if it is there."""
        found = (rows.keys == self._key_of(row)).nonzero()
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
                change = (after - before).reshape(len(long), -1).cpu().float()
                self.rows.worker.push(rows.keys[long.cpu()], change)
            rows.values[long] = after

    def _key_of(self, row: int) -> int:
        return self.rows.first_key + row % self.shape[0]

    def _tracks(self, requires_grad: bool) -> bool:
        return requires_grad and self.training and torch.is_grad_enabled()

    def _pull(self, keys: Tensor, track: bool) -> PulledRows:
        pulled = PulledRows(self.rows.pull(keys), keys)
        if track:
            self.gradients.track(pulled)
        return pulled

    def _next_expected(self, expected: TableRows | None, ids: Tensor) -> Lookup | None:
        if not self.training or expected is None or self._position >= len(expected.lookups):
            return None
        lookup = expected.lookups[self._position]
        same_kind = lookup.ids.dtype is ids.dtype and lookup.ids.numel() == ids.numel()
        if lookup.ids is not ids and not (same_kind and _same_numbers(lookup.ids, ids)):
            return None  # an unforeseen read; the foreseen one may still come
        self._position += 1
        return lookup


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether the elements are the same in order, whatever the shapes and devices."""
    if a.shape != b.shape:
        a, b = a.reshape(-1), b.reshape(-1)
    return torch.equal(a, b if a.device == b.device else b.to(a.device))
