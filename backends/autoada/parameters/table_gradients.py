"""The gradient of a table: its rows as PyTorch sees them, and on their way to the server."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch
from torch import Tensor

import adaps
from autoada.parameters.server_rows import ServerRows
from autoada.parameters.table_tensor import RowStore, TableTensor
from autoada.sync.gradient_exchange import CombinedGradients, Gradients

aten = torch.ops.aten
_GRADIENT: Any = Tensor.grad
raw_gradient: Callable[[Tensor], Tensor | None] = _GRADIENT.__get__
"""Returns the gradient that autograd keeps for a parameter; a table's ``grad`` shows another form of it."""
set_raw_gradient: Callable[[Tensor, Tensor | None], None] = _GRADIENT.__set__
"""Sets the gradient that autograd keeps for a parameter."""
RowGradients = tuple[Tensor, Tensor]
"""Ids of rows, of any shape, which may repeat, and a gradient for each, in host memory."""


class GradientRows(RowStore):
    """The store of a `RowGradient`: the rows that have a gradient, and zeros for all others.

    Rows that occur several times in the sparse tensor are added up.
    """

    def __init__(self, table: str, sparse: Tensor) -> None:
        self.table = table
        self.name = f"gradient of {table}"
        self.shape, self.dtype, self.device = sparse.shape, sparse.dtype, sparse.device
        self.sparse = sparse
        self._owned = False

    def rows(self) -> tuple[Tensor, Tensor]:
        """The ids in order, each once, and their gradients."""
        if not self._owned or not self.sparse.is_coalesced():
            coalesced = self.sparse.coalesce()
            # A sum of several rows is a copy. Without a sum, a backward pass may still own the values.
            copied = self._owned or (coalesced is not self.sparse and self.sparse._nnz() > 1)
            self.sparse, self._owned = coalesced if copied else coalesced.clone(), True
        return self.sparse._indices()[0], self.sparse._values()

    def read(self, ids: Tensor) -> Tensor:
        """The gradients of `ids`."""
        return (
            self.sparse.index_select(0, ids.reshape(-1).to(self.device))
            .to_dense()
            .view(*ids.shape, *self.shape[1:])
        )

    def whole(self) -> Tensor:
        """The dense gradient."""
        return self.sparse.to_dense()

    def write(self, ids: Tensor, rows: Tensor, together: bool = False) -> None:
        """Replace the gradients of `ids`."""
        ids = ids.to(self.device)
        kept, values = self.rows()
        others = ~torch.isin(kept, ids)
        given = (rows != 0).reshape(len(rows), self.shape[1:].numel()).any(1)
        self.sparse = row_sparse(
            torch.cat([kept[others], ids[given]]), torch.cat([values[others], rows[given]]), self.shape
        )

    def with_values(self, values: Tensor) -> GradientRows:
        """Another gradient of the same rows."""
        return GradientRows(self.table, row_sparse(self.rows()[0], values, self.shape))


class RowGradient(TableTensor):
    """A table's gradient: of the table's shape, with zeros for rows that have none.

    Norms and scaling work on the rows alone; other operations make the whole gradient for a moment.
    """

    store: GradientRows

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = _add if func in _SUMS else _by_values if func in _KEEP_ZERO else None
        if rule is not None and (output := rule(func, args, kwargs)) is not NotImplemented:
            return output
        return super().__torch_dispatch__(func, types, args, kwargs)

    def take_data(self, value: Tensor) -> None:
        """Take over the values of another gradient."""
        given, own = (value.shape, value.dtype, value.device), (self.shape, self.dtype, self.device)
        if not self.has_all_rows or given != own:
            super().take_data(value)
        if isinstance(value, RowGradient) and value.has_all_rows:
            self.store = value.store
        else:
            self.store = GradientRows(self.store.table, sparse_rows(value).clone())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values().__reduce_ex__(protocol)

    def coalesce(self) -> Tensor:
        """The gradient as a sparse tensor, each row once."""
        self.store.rows()
        return self.store.sparse


def row_sparse(ids: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """A sparse tensor of rows."""
    return torch.sparse_coo_tensor(ids.reshape(1, -1), values, shape, check_invariants=False)


def rows_of(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Ids of any shape, which may repeat, and a row for each; a dense gradient is one of all rows."""
    if isinstance(gradient, TableTensor):
        if isinstance(gradient, RowGradient):
            return gradient.store.rows()
        gradient = gradient.values()
    if gradient.is_sparse and gradient.sparse_dim() == 1:
        return gradient._indices(), gradient._values()
    return torch.arange(len(gradient), device=gradient.device), gradient.to_dense()


def sparse_rows(gradient: Tensor) -> Tensor:
    """A gradient as a sparse tensor of rows."""
    if gradient.is_sparse and not isinstance(gradient, TableTensor) and gradient.sparse_dim() == 1:
        return gradient
    return row_sparse(*rows_of(gradient), gradient.shape)


class TableGradients:
    """Brings the gradients of one table's parameter to the server."""

    def __init__(self, rows: ServerRows, sums_in_server: bool) -> None:
        self._rows = rows
        self.sums_in_server = sums_in_server
        """Whether the server itself adds up the gradients of a row that was read several times. Otherwise
        every row is handed over once, as in coalesced sparse gradients."""
        self._collected: RowGradients | None = None
        self.follow: Callable[[], Any] = lambda: None
        """A weak reference to the table's parameter."""
        self.began_sparse: bool | None = None
        """Whether the first gradient that was pushed was sparse in PyTorch, too; None before it."""

    def collect(self, scale: float) -> None:
        """Collect the gradients for a push and start their copy to host memory."""
        self._collected = None
        parameter = self.follow()
        if parameter is None or (gradient := raw_gradient(parameter)) is None:
            return
        parameter.meets_dense = type(gradient) is Tensor and not gradient.is_sparse
        parameter.adds_to_dense = False
        if self.began_sparse is None:
            self.began_sparse = gradient.is_sparse and parameter.has_sparse_gradient
        transfer = self._rows.transfer
        if not transfer.direct and gradient.is_sparse:
            gradient = gradient.coalesce()  # before the copy, on the device
        if gradient.requires_grad:  # It was computed with a graph.
            gradient = gradient.detach()
        ids, values = rows_of(gradient)
        if scale != 1:
            values = scale * values
        if not self.sums_in_server:
            ids, values = ids.cpu().view(-1), transfer.start_to_host(values)
        self._collected = ids, values.contiguous()

    def take(self) -> RowGradients | None:
        """The collected gradients, which have arrived in host memory; if there are any, they make a step."""
        taken, self._collected = self._collected, None
        if taken is not None:
            self._rows.count_step()
        return taken

    def given(self) -> Gradients:
        """The collected gradients, each row once, which have arrived in host memory."""
        if self._collected is None:
            empty = torch.empty(0, self._rows.length, dtype=torch.float32, device="cpu")
            return Gradients(torch.empty(0, dtype=torch.int64, device="cpu"), empty)
        return self.summed(self._collected)

    def summed(self, gradients: RowGradients) -> Gradients:
        """The keys of rows, each once, with the sums of their gradients."""
        ids, rows = gradients
        return Gradients(*adaps.sum_by_key(ids + self._rows.first_key, rows.reshape(-1, self._rows.length)))

    def put(self, combined: CombinedGradients) -> None:
        """Push this worker's part of the combined gradients of all workers."""
        self._collected = None
        if combined.anywhere:
            self._rows.count_step()
            for step in combined.steps:
                self._rows.worker.push_gradients(*step)


def _by_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation that leaves zeros zero on the rows that have a gradient."""
    condition = _KEEP_ZERO[func]
    several = isinstance(args[0], list | tuple)
    operands = list(args[0]) if several else [args[0]]
    whole = all(
        isinstance(one, RowGradient) and one.has_all_rows for one in operands if isinstance(one, TableTensor)
    )
    if not whole or not all(condition(other) for other in (*args[1:], *kwargs.values())):
        return NotImplemented
    values = [one.store.rows()[1] if isinstance(one, RowGradient) else one for one in operands]
    if func in _NORMS and any(rows.numel() == 0 for rows in values):
        return NotImplemented  # some norms of nothing are not defined
    output = func(values if several else values[0], *args[1:], **kwargs)
    if func in _NORMS or output is None:
        return output
    if func._schema.arguments[0].alias_info is not None:
        return args[0]
    outputs = output if several else [output]
    results = [
        RowGradient.of(one.store.with_values(rows)) if isinstance(one, RowGradient) else rows
        for one, rows in zip(operands, outputs, strict=True)
    ]
    return results if several else results[0]


def _add(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add two gradients of some rows, also of types for which PyTorch cannot add sparse tensors."""
    first, second = args[:2]
    in_place = func is aten.add_.Tensor
    if (
        not is_row_sparse(first)
        or not is_row_sparse(second)
        or (first.shape, first.dtype) != (second.shape, second.dtype)
        or (in_place and not isinstance(first, RowGradient))
    ):
        return NotImplemented
    one, other = (each.store.sparse if isinstance(each, RowGradient) else each for each in (first, second))
    sparse = row_sparse(
        torch.cat([one._indices(), other._indices()], 1),
        torch.cat([one._values(), other._values() * kwargs.get("alpha", 1)]),
        first.shape,
    )
    if in_place:
        first.store.sparse = sparse.coalesce()
        return first
    gradient = first if isinstance(first, RowGradient) else second
    return RowGradient.of(GradientRows(gradient.store.table, sparse), gradient.place)


def is_row_sparse(value: Any) -> bool:
    """Whether this is a gradient of some rows, as a sparse tensor or as a `RowGradient`."""
    if isinstance(value, TableTensor):
        return isinstance(value, RowGradient) and value.has_all_rows
    return isinstance(value, Tensor) and value.is_sparse and value.sparse_dim() == 1


def _finite(other: Any) -> bool:
    """Whether zero times this is zero."""
    if isinstance(other, Tensor):
        return other.dim() == 0 and isfinite(float(other))
    return isinstance(other, int | float) and isfinite(other)


def _divisor(other: Any) -> bool:
    """Whether zero divided by this is zero."""
    return _finite(other) and float(other) != 0


def _any(other: Any) -> bool:
    return True


def _norm_option(other: Any) -> bool:
    """Whether zeros do not count: the order is positive, and the norm is over all dimensions."""
    return (
        other is None
        or isinstance(other, torch.dtype | bool)
        or (isinstance(other, int | float) and other > 0)
    )


def _scaler_option(other: Any) -> bool:
    """Whether this is the scale or the flag of a gradient scaler."""
    return isinstance(other, Tensor) and other.numel() == 1


_SUMS = {aten.add.Tensor, aten.add_.Tensor}
_NORMS = {aten.linalg_vector_norm.default, aten.norm.Scalar, aten._foreach_norm.Scalar}
_KEEP_ZERO: dict[Any, Callable[[Any], bool]] = {
    **dict.fromkeys(
        (
            aten.mul.Tensor, aten.mul.Scalar, aten.mul_.Tensor, aten.mul_.Scalar,
            aten._foreach_mul.Scalar, aten._foreach_mul_.Scalar, aten._foreach_mul.Tensor,
            aten._foreach_mul_.Tensor,
        ),
        _finite,
    ),
    **dict.fromkeys(
        (
            aten.div.Tensor, aten.div.Scalar, aten.div_.Tensor, aten.div_.Scalar, aten._foreach_div.Scalar,
            aten._foreach_div_.Scalar, aten._foreach_div.Tensor, aten._foreach_div_.Tensor,
        ),
        _divisor,
    ),
    **dict.fromkeys(_NORMS, _norm_option),
    **dict.fromkeys(
        (
            aten.neg.default, aten.neg_.default, aten.sign.default, aten.abs.default, aten.clone.default,
            aten.zero_.default, aten._foreach_zero_.default,
        ),
        _any,
    ),
    aten._amp_foreach_non_finite_check_and_unscale_.default: _scaler_option,
}  # fmt: skip
"""Operations that leave zeros zero, and the condition for each of their further arguments."""
