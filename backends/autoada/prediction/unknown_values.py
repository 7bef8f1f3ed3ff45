"""Unknown values: tensors that depend on parameters, and the reads of tables that create them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autoada.prediction import lookups
from autoada.prediction.meta_model import MetaModel
from autoada.prediction.operations import TorchFunction, name_of
from autoada.prediction.result import Access
from autoada.prediction.source_location import source_line, user_location
from autoada.prediction.trace import Trace


class UnknownValueRead(BaseException):
    """Raised if Python requests a value that depends on parameters.

    It is not an `Exception`, so that ``except Exception`` in the model does not catch it.
    """

    def __init__(self, operation: str, where: str) -> None:
        line = source_line(where)
        super().__init__(
            f"`{operation}` reads the value of something that depends on parameters, at {where}{line}"
        )
        self.place = operation, where


class ForeignWrite(BaseException):
    """Raised before an in-place write to memory that the simulation did not create."""

    def __init__(self, target: Tensor) -> None:
        super().__init__("in-place write to a tensor of the batch or the model")
        self.storage = target.untyped_storage().data_ptr()


def unknown(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor that has a shape and a dtype but no data."""
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


@dataclass(slots=True, unsafe_hash=True)  # A frozen one takes twice the time to create.
class Form:
    """Shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def unknown(self) -> Tensor:
        """Return a tensor of this form without data."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")

    def ones(self) -> Tensor:
        """Return a tensor of this form that contains ones."""
        if 0 in self.strides:
            return torch.ones(self.shape, dtype=self.dtype, device="cpu")
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="cpu").fill_(1)


def form_of(tensor: Tensor) -> Form:
    """Return the form of a tensor."""
    return Form(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def forms_in(values: Any) -> Any:
    """Return nested values in which each tensor is replaced by its form."""
    return pytree.tree_map_only(Tensor, form_of, values)


def unknowns_in(values: Any) -> Any:
    """Return nested values in which each form is replaced by a tensor without data."""
    if type(values) is Form:  # The output of most operations.
        return values.unknown()
    return pytree.tree_map_only(Form, Form.unknown, values)


class UnknownValues:
    """Distinguishes known from unknown values in one simulation, and collects the reads of tables.

    A tensor's values are unknown if it is a meta tensor, if unknown data were written into its storage, or if
    it is a parameter of the live model that forward reaches through a closure.
    """

    def __init__(self, meta_model: MetaModel, trace: Trace | None, *, explain: bool = False) -> None:
        self.accesses: list[Access] = []
        self.overwritten: set[int] = set()  # Addresses of storages with unknown data.
        self.dense_reads: dict[str, str] = {}
        """Large parameters that are not tables but are read by rows, with the places."""
        self._large = meta_model.large
        self._tables = meta_model.tables
        self._real_parameters = meta_model.parameters
        self._trace = trace
        self._full: set[str] = set()
        self._alive: list[Any] = []  # Identities and addresses stay unique while their objects live.
        self._origins: dict[int, str] | None = {} if explain else None

    def is_unknown(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a meta tensor, a parameter, or overwritten with unknown data."""
        return (
            id(tensor) in self._real_parameters
            or tensor.is_meta
            or (bool(self.overwritten) and tensor.untyped_storage().data_ptr() in self.overwritten)
        )

    def touches(self, values: Iterable[Any]) -> bool:
        """Return whether a value is unknown. Tables among the values are recorded as read in full."""
        found = False
        for value in values:
            if isinstance(value, Tensor):
                if self.is_unknown(value):
                    found = True
                    table = self.table_name(value)
                    if table is not None:
                        self.read_in_full(table)
            elif type(value) in (list, tuple) and self.touches(value):
                found = True
        return found

    def table_name(self, tensor: Tensor) -> str | None:
        """Return the table's name if `tensor` is a table."""
        parameter = self._real_parameters.get(id(tensor), tensor)
        return self._tables.get(id(parameter))

    def as_meta(self, value: Any) -> Any:
        """Return the value with every tensor replaced by a meta tensor of its shape."""
        if isinstance(value, Tensor):
            value = self._real_parameters.get(id(value), value)
            if value.is_meta:
                return value
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            items = [self.as_meta(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return torch.device("meta") if isinstance(value, torch.device) else value

    def remember_origin(self, func: TorchFunction, output: Any) -> None:
        """Store the operation that created an unknown integer value, in a simulation that explains."""
        if self._origins is None:
            return
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, Tensor) and not leaf.is_floating_point() and id(leaf) not in self._origins:
                self._origins[id(leaf)] = f"`{name_of(func)}` at {user_location()}"
                self._alive.append(leaf)

    def _record(self, access: Access) -> None:
        self.accesses.append(access)
        if self._trace is not None:
            self._trace.accesses += 1

    def read_in_full(self, table: str) -> None:
        """Record a read of a whole table, once."""
        if table not in self._full:
            self._full.add(table)
            self._record(Access(table, None, "full", user_location()))

    def read_rows(self, table: str, ids: Tensor) -> None:
        """Record a lookup."""
        ids = lookups.unwrapped(ids)
        where = user_location()
        if self.is_unknown(ids):
            origin = (self._origins or {}).get(id(ids))
            self._record(
                Access(table, None, "unpredictable", f"{where} (ids from {origin})" if origin else where)
            )
        else:
            self._record(Access(table, ids, "rows", where))

    def rows_of_dense(self, source: Tensor) -> None:
        """Record a read of rows of `source`, which is not a table."""
        name = self._large.get(id(self._real_parameters.get(id(source), source))) if self._large else None
        if name is not None and name not in self.dense_reads:
            self.dense_reads[name] = user_location()

    def overwrite(self, tensor: Tensor) -> None:
        """Record that unknown data were written into `tensor`."""
        self.overwritten.add(tensor.untyped_storage().data_ptr())
        self._alive.append(tensor)
