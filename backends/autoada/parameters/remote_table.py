"""A table of the parameter server that replaces a module's parameter."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

import adaps
from autoada.parameters.server_rows import ServerRows
from autoada.parameters.table_gradients import TableGradients
from autoada.parameters.table_tensor import RowsInMemory, RowsWithViews
from autoada.prediction.row_set import Lookup, TableRows, host_ids
from autoada.prediction.source_location import user_location

# Independent of the default dtype and device of PyTorch, and cheaper than `torch.empty`.
_new_rows = torch.empty(0, dtype=torch.float32, device="cpu").new_empty
Read = tuple[str, Tensor | None]
"""Table and ids of one read; None stands for the whole table."""


class Reads(list[Read]):
    """Reads of a model's tables by the calls for a batch in training mode, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.training = True
        """Whether the model is in training mode."""
        self.noting = True
        """Whether reads are recorded, because a call is in progress."""
        self.pulled_at: dict[str, str] = {}
        """With several workers, places of reads outside of the model's calls that pulled whole tables, by
        table."""
        self.holders: set[RemoteTable] = set()
        """Tables that hold rows from earlier reads."""
        self.whole: set[str] = set()
        """Tables of which all rows were read for the batch."""

    def begin_batch(self) -> None:
        """Forget the reads for the previous batch, and their rows."""
        self.clear()
        self.whole.clear()
        if self.holders:
            self.forget_rows()

    def forget_rows(self, tables: Iterable[RemoteTable] | None = None) -> None:
        """Let all tables, or some, pull rows again when they are next read."""
        if self.holders:
            for table in [*self.holders] if tables is None else self.holders.intersection(tables):
                table.forget_rows()


class RemoteTable(RowsWithViews):
    """The store of a `TableParameter`: reads and writes rows of one table of the server.

    Rows that a batch is expected to read are pulled together at the first read, and stored until the step.
    """

    def __init__(
        self, rows: ServerRows, reads: Reads, *, alone: bool, combines: bool, together: bool
    ) -> None:
        super().__init__()
        self.name = rows.name
        self.rows = rows
        self.shape = rows.shape
        self.first_key = rows.first_key
        self.dtype = rows.dtype
        self.device = rows.transfer.device
        self.is_local = alone and rows.transfer.direct and rows.dtype is torch.float32
        """Whether every lookup reads the server's memory on this node directly. The server then also adds up
        the gradients of a row that was read several times."""
        self.gradients = TableGradients(rows, self.is_local and not combines)
        self._reads = reads
        self._expected: TableRows | None = None
        self._position = 0
        self._pulled: tuple[Tensor, Tensor] | None = None  # keys and values of the expected rows
        self._whole: Tensor | None = None
        self._in_graphs = False
        """Whether graphs may have saved `_whole`."""
        self.has_stale_graphs = False
        """Whether graphs may have saved rows that do not follow writes, since the last change that ended such
        graphs."""
        self._together = together

    def rows_of(self, ids: Tensor) -> Tensor:
        """The row numbers of ids as the data have them, which are the numbers of a `HashEmbedding`'s ids."""
        return ids

    def keys(self, ids: Tensor) -> Tensor:
        """The server's keys of row ids; IndexError for a row that does not exist."""
        keys: Tensor = self.rows.table.keys(ids)
        return keys

    def expect(self, rows: TableRows | None) -> None:
        """Set the rows that the forward passes of the next batch are predicted to read."""
        self._expected = rows
        self._position = 0

    def forget_rows(self) -> None:
        """Pull rows again when they are next read."""
        self._pulled = self._whole = None
        self.has_stale_graphs |= self._in_graphs
        self._in_graphs = False
        self._reads.holders.discard(self)

    def read(self, ids: Tensor) -> Tensor:
        """The rows of `ids`, of shape ``(*ids.shape, *row)``; IndexError for one that does not exist."""
        if ids.dtype is not torch.int64 and ids.dtype is not torch.int32:
            torch.embedding(torch.empty(0, 0, device="cpu"), ids)  # raises PyTorch's error
        expected = self._expected  # once: another thread may hand out the next batch
        known = None if expected is None else self._next_expected(expected, ids)
        reads, source = self._reads, self.rows
        if reads.noting and reads.training:
            reads.append((self.name, ids if known is None else known.ids))
        if self._whole is not None:  # nothing more to pull
            if ids.numel() > 0:
                self.keys(torch.stack(ids.aminmax()).to("cpu", torch.int64))
            return self._picked(self._whole, ids, ids.long())
        if expected is None and self.is_local:
            rows = _new_rows(*ids.shape, *source.row_shape)  # numbers are parsed faster than a tuple
            source.worker.pull_rows(source.table, host_ids(ids), rows, source.applies_missed_steps)
            return rows
        if known is None:
            unique, inverse = adaps.deduplicate(host_ids(ids))
            return self._picked(source.pull(self.keys(unique)), ids, inverse)
        assert expected is not None
        if self._pulled is None or self._pulled[0] is not expected.keys:
            self._pulled = (expected.keys, source.pull(expected.keys))
            reads.holders.add(self)
        return self._picked(self._pulled[1], ids, known.inverse)

    def whole(self) -> Tensor:
        """Return all rows, which the caller must not change."""
        reads = self._reads
        if reads.noting and reads.training and self.name not in reads.whole:
            reads.whole.add(self.name)
            reads.append((self.name, None))
        if self._whole is None:
            with torch.inference_mode(False):  # A graph may save it later.
                self._whole = self.rows.pull(self.rows.all_keys)
            reads.holders.add(self)
            if self.rows.is_shared and reads.training and not reads.noting:
                reads.pulled_at[self.name] = user_location()
        return self._whole

    def saved(self, ids: Tensor | None) -> Tensor:
        """Rows for graphs that save them. Only the whole table follows later writes."""
        in_graph = torch.is_grad_enabled()
        if ids is None:
            rows = self.whole()
            self._in_graphs |= in_graph
            return rows
        self.has_stale_graphs |= in_graph
        with torch.inference_mode(False):  # It becomes a view of the parameter.
            return self.viewed(ids)

    def fetch(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids` for a change, which does not count as a read of the model."""
        rows = self.rows.pull(self.keys(ids.reshape(-1).to("cpu", torch.int64)))
        return rows.view(*ids.shape, *self.rows.row_shape)

    def begin_update(self, depends: bool = True) -> bool:
        """Begin a write. All workers make it together if it `depends` on values, or if they step together."""
        together = self.rows.is_shared and (depends or self._together) and not self.rows.is_loading
        if together:
            self.rows.worker.end_setup()
            self.forget_rows()
        return together

    def end_update(self, together: bool) -> None:
        """End the computation of new values. All workers read the old values before any worker writes."""
        if together:
            self.rows.worker.barrier()

    def write(self, ids: Tensor, rows: Tensor, together: bool = False) -> None:
        """Replace distinct rows. If all workers write, the values of the primary worker are used."""
        if self.rows.is_primary or not (together or self.rows.is_loading):
            self.rows.write(ids, rows)
        if together:
            self.rows.worker.end_setup()
        if self.has_stale_graphs:
            mark_changed([self])
        if self._whole is not None and self._in_graphs:
            self._whole[ids.to(self.device)] = rows.to(self._whole)
            self._pulled = None
        else:
            self.forget_rows()

    def end_views(self) -> None:
        """Let existing views keep the present values, and no longer follow the table."""
        if self.views():
            self.move_views(RowsInMemory(self.name, self.rows.pull(self.rows.all_keys)))

    def _picked(self, rows: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the row at each position, in the shape of `ids`."""
        positions = positions.reshape(-1)
        if not self.rows.transfer.direct:
            positions = positions.to(self.device, non_blocking=True)
        picked = rows.index_select(0, positions)
        return picked.view(*ids.shape, *self.rows.row_shape)

    def _next_expected(self, expected: TableRows, ids: Tensor) -> Lookup | None:
        if not self._reads.training or self._position >= len(expected.lookups):
            return None
        lookup = expected.lookups[self._position]
        same_kind = lookup.ids.dtype is ids.dtype and lookup.ids.numel() == ids.numel()
        if lookup.ids is not ids and not (same_kind and _same_numbers(lookup.ids, ids)):
            return None  # an unforeseen read; the foreseen one may still come
        self._position += 1
        return lookup


def mark_changed(tables: Iterable[RemoteTable]) -> None:
    """Let autograd refuse graphs that saved values from before a change of the tables."""
    parameters = []
    for table in tables:
        table.has_stale_graphs = False
        if (parameter := table.gradients.follow()) is not None:
            parameters.append(parameter)
    increment_version(parameters)


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    """Return whether the elements are equal in order, on any devices and in any shapes."""
    if a.shape != b.shape:
        a, b = a.reshape(-1), b.reshape(-1)
    return torch.equal(a, b if a.device == b.device else b.to(a.device))
