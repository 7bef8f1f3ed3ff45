"""The parameter that replaces a table's weight; its rows are in the parameter server."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from autoada.hash_embedding import HashEmbedding
from autoada.parameters.hash_table import HashTable
from autoada.parameters.remote_table import RemoteTable
from autoada.parameters.table_gradients import (
    GradientRows,
    RowGradient,
    raw_gradient,
    row_sparse,
    set_raw_gradient,
    sparse_rows,
)
from autoada.parameters.table_tensor import RowsInMemory, TableTensor, TorchFunction, as_plain, tables_in

Hook = Callable[[Tensor], Any]
_current_pass: Callable[[], int] = torch._C._current_graph_task_id
_modes: Callable[[], int] = torch._C._len_torch_function_stack
_HALF = (torch.float16, torch.bfloat16)
"""Types of elements of which PyTorch cannot add two sparse tensors on the CPU."""
_PLAIN_LOOKUP, _PLAIN_FORWARD = F.embedding, nn.Embedding.forward


class TableParameter(TableTensor, nn.Parameter):
    """Replaces a module's weight: it has the weight's shape and no memory.

    Lookups of rows pull these rows and give the table a sparse gradient, which autograd accumulates like any
    other. To users it has the table's shape, as a `RowGradient`; with ``sparse=True`` it is PyTorch's own
    sparse tensor. All other operations follow the rule of `TableTensor`.
    """

    store: RemoteTable
    sparse_tables: set[str]
    """Names of tables with lookups that ask for a sparse gradient; all tables of a model share this set."""
    has_dense_part = False
    """Whether the present gradient has a part that is dense in PyTorch."""
    dense_pass = -1
    """Number of the last backward pass that computed such a part."""
    meets_dense = False
    """Whether autograd may add gradients of lookups to a dense one, as with a penalty on the whole table."""
    adds_to_dense = False
    """Whether the dense one may come second, as it is of an operation before the lookup."""

    @property
    def has_sparse_gradient(self) -> bool:
        """Whether the present gradient is sparse in PyTorch, where any dense part makes the sum dense."""
        return self.may_be_sparse and not self.has_dense_part

    @property
    def may_be_sparse(self) -> bool:
        """Whether some lookup asked, or will ask, for a sparse gradient."""
        return self.store.name in self.sparse_tables

    @property
    def grad(self) -> Tensor | None:
        """The gradient, of the table's shape; rows that were not read are zero."""
        with as_plain():
            gradient = raw_gradient(self)
            if gradient is None or not gradient.is_sparse or self.has_sparse_gradient:
                return gradient
            dense = self._shown(gradient)
            set_raw_gradient(self, dense)
            return dense

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self.has_dense_part = False
        if isinstance(value, Tensor) and value.is_sparse:
            self.sparse_tables.add(self.store.name)
        with as_plain():
            set_raw_gradient(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def _shown(self, gradient: Tensor) -> Tensor:
        """A sparse gradient as a dense one, which keeps its graph if it has one."""
        if gradient.requires_grad:
            return gradient.to_dense()
        shown: Tensor = RowGradient.of(GradientRows(self.store.name, sparse_rows(gradient)), self.place)
        return shown

    def take_data(self, value: Tensor) -> None:
        """Copy `value` into the table. Earlier views of the table, such as ``.data``, keep their values.

        As in PyTorch, they follow the table again when it is given one of them. All workers do this together,
        because the slowest one also keeps the values from before.
        """
        if isinstance(value, TableTensor) and value.store is self.store and value.has_all_rows:
            return  # as after ``parameter.data += change``
        if (value.shape, value.dtype, value.device) != (self.shape, self.dtype, self.device):
            raise RuntimeError(
                f"{self!r} was given {value.dtype} of shape {tuple(value.shape)} on {value.device} as its "
                "data: a table keeps its shape, dtype and device"
            )
        if isinstance(value, TableTensor) and isinstance(value.store, RemoteTable):
            raise RuntimeError(
                f"{self!r} was given {value!r} as its data, whose memory it cannot share: copy the values "
                "with copy_(), or assign a copy of them, clone()"
            )
        store, values = self.store, torch.empty(self.shape, dtype=self.dtype, device=self.device).copy_(value)
        together = store.begin_update()
        store.end_views()
        store.end_update(together)
        store.write(torch.arange(len(values), device="cpu"), values, together)
        increment_version(self)
        if isinstance(value, TableTensor) and isinstance(value.store, RowsInMemory) and value.has_all_rows:
            value.store.move_views(store)

    def register_hook(self, hook: Hook) -> Any:
        """Call `hook` with each gradient of the table, of the table's shape."""
        return super().register_hook(_with_whole_shape(self, hook))  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = memo.setdefault(id(self), nn.Parameter(self.values().clone(), self.requires_grad))
        return copied

    @classmethod
    def __torch_function__(
        cls, func: TorchFunction, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if (lookup := _LOOKUPS.get(func)) is not None:
            with as_plain():
                if (output := lookup(*args, **(kwargs or {}))) is not NotImplemented:
                    return output
        if func is Tensor.detach and sys._getframe(1).f_code is nn.Parameter.__new__.__code__:
            raise RuntimeError(
                f"{args[0]!r} cannot be made another parameter: give nn.Parameter a view of it, detach(), or "
                "a copy, detach().clone()"
            )
        output = super().__torch_function__(func, types, args, kwargs)
        if torch.is_grad_enabled():
            with as_plain():
                _note_use(output, (args, kwargs))
        return output


def _note_use(output: Any, arguments: Any) -> None:
    """Note that the parameters among the arguments of an operation may have a dense gradient."""
    outputs = output if isinstance(output, list | tuple) else (output,)
    if any(isinstance(each, Tensor) and each.requires_grad for each in outputs):
        for table in tables_in(arguments):
            if isinstance(table, TableParameter):
                table.meets_dense = table.adds_to_dense = True


def check_replaceable(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError unless `replace_parameters` can do its work."""
    for name, parameter in parameters.items():
        if parameter._use_count() > 1 or weakref.getweakrefs(parameter):  # type: ignore[attr-defined]
            raise ValueError(
                f"the parameter {name!r} is still part of an earlier forward pass, or referred to weakly: "
                "delete the outputs and losses before AdaModel wraps the model"
            )


def replace_parameters(
    module: nn.Module, parameters: Mapping[str, nn.Parameter], tables: Mapping[str, RemoteTable]
) -> None:
    """Turn `parameters` of a model into `TableParameter`s; they stay the same objects for all their holders.

    Their gradients and hooks go on.
    """
    sparse = {id(_own_weight(one)) for one in module.modules() if getattr(one, "sparse", False)}
    names = {name for name, parameter in parameters.items() if id(parameter) in sparse}
    for name, parameter in parameters.items():
        gradient, parameter.grad = parameter.grad, None
        hooks, after = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
        own = dict(vars(parameter))
        torch.utils.swap_tensors(
            parameter, TableParameter.of(tables[name], requires_grad=parameter.requires_grad)
        )
        vars(parameter).update(own)
        tables[name].gradients.follow = weakref.ref(parameter)
        assert isinstance(parameter, TableParameter)
        parameter.sparse_tables = names
        parameter.grad = gradient
        if hooks is not None:
            for number, hook in hooks.items():
                hooks[number] = _with_whole_shape(parameter, hook)
            parameter._backward_hooks = hooks  # the same dictionary, so that handles still remove hooks
        if after is not None:
            parameter._post_accumulate_grad_hooks = after
    for each in module.modules():
        weight = _own_weight(each)
        if isinstance(each, HashEmbedding) and isinstance(weight, TableParameter):
            assert isinstance(weight.store, HashTable)
            each.id_map = weight.store.rows
        elif type(weight) is TableParameter and type(each) is nn.Embedding and "forward" not in vars(each):
            # copy and pickle call __getstate__, so that no copy has a method that is bound to this module.
            own = {"forward": _embedding_forward, "__getstate__": _state_of_plain_embedding}
            vars(each).update({name: MethodType(method, each) for name, method in own.items()})


def _own_weight(module: nn.Module) -> nn.Parameter | None:
    """Return the parameter `weight`. A parametrization would compute it, which can draw random numbers."""
    return next((one for name, one in module.named_parameters(recurse=False) if name == "weight"), None)


def _state_of_plain_embedding(module: nn.Embedding) -> dict[str, Any]:
    """Return the attributes of a wrapped embedding's copies, which call PyTorch's forward."""
    return {name: value for name, value in vars(module).items() if name not in ("forward", "__getstate__")}


def _embedding_forward(module: nn.Embedding, input: Tensor) -> Any:
    """Do the same as PyTorch's forward for an embedding whose weight is a table, in less time.

    PyTorch searches for overrides of the lookup in Python, which takes a third of the time of a lookup. The
    search is only left out where it finds the table.
    """
    weight, padding = module._parameters.get("weight"), module.padding_idx
    if (
        type(weight) is TableParameter
        and type(input) is Tensor
        and not module.sparse
        and not weight.sparse_tables
        and not weight.meets_dense
        and weight.store.dtype not in _HALF
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and (padding is None or (0 <= padding < weight.store.shape[0] and input.dim() > 0))
        and not _modes()
        and F.embedding is _PLAIN_LOOKUP  # A program may replace either function.
        and nn.Embedding.forward is _PLAIN_FORWARD
    ):
        with as_plain():
            return torch.embedding(weight, _copied(input), -1 if padding is None else padding, False, True)
    return nn.Embedding.forward(module, input)


def _with_whole_shape(parameter: TableParameter, hook: Hook) -> Hook:
    """A hook that sees the gradient as ``parameter.grad`` would show it."""
    reference = weakref.ref(parameter)

    def called(gradient: Tensor) -> Tensor | None:
        table = reference()
        sparse = table is None or (table.may_be_sparse and table.dense_pass != _current_pass())
        if table is None or sparse or not gradient.is_sparse:
            result: Tensor | None = hook(gradient)
        else:
            shown = table._shown(gradient)
            result = hook(shown)
            result = shown if result is None else result
        return sparse_rows(result) if result is not None and gradient.is_sparse else result

    return called


# Lookups have sparse gradients. They return NotImplemented for arguments to which `TableTensor` applies.


def _lookup(weight: TableParameter, ids: Tensor, padding: int, sparse: bool) -> Tensor:
    """The rows of `ids` from a table with two dimensions; `sparse` is the kind of their gradient in PyTorch.

    Gradients of the row `padding` are left out; -1 stands for no row.
    """
    if padding >= 0 and ids.dim() == 0:  # PyTorch has no sparse gradient for such ids.
        return _lookup(weight, ids.view(1), padding, sparse)[0]
    if sparse and (name := weight.store.name) not in weight.sparse_tables:
        weight.sparse_tables.add(name)
        weight.has_dense_part = raw_gradient(weight) is not None
    special = not sparse and (weight.adds_to_dense or weight.store.dtype in _HALF)
    if special and not torch._C._are_functorch_transforms_active():
        rows: Tensor = _Lookup.apply(weight, ids, padding)  # type: ignore[no-untyped-call]
    else:
        rows = torch.embedding(weight, ids if sparse else _copied(ids), padding, False, True)
    if weight.sparse_tables and not sparse and rows.requires_grad:
        rows.register_hook(functools.partial(_dense_part, weakref.ref(weight)))
    elif weight.meets_dense and rows.requires_grad:
        # PyTorch adds rows that are not contiguous to a dense gradient one by one.
        rows.register_hook(Tensor.contiguous)
    return rows


def _copied(ids: Tensor) -> Tensor:
    """A copy for the gradient, because the program may change its ids while the gradient stays."""
    return ids.clone() if ids.is_contiguous() else ids.contiguous()


def _dense_part(weight: Callable[[], TableParameter | None], gradient: Tensor) -> Tensor:
    """Note a part of the gradient that is dense in PyTorch, and return it in memory of its own.

    Autograd may give the same memory to a sparse gradient, which the program may change in place.
    """
    _note_dense(weight())
    return gradient.clone()


def _note_dense(weight: TableParameter | None) -> None:
    """Note a part of the gradient that is dense in PyTorch."""
    if weight is not None:
        weight.has_dense_part = True
        weight.dense_pass = _current_pass()


def _embedding(
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    padding = -1
    possible = type(weight) is TableParameter and not scale_grad_by_freq and weight.dim() == 2
    if possible and padding_idx is not None:
        rows = weight.store.shape[0]
        padding, possible = padding_idx % max(1, rows), -rows <= padding_idx < rows
    if not possible:
        return NotImplemented
    if max_norm is not None:
        _shorten(weight, input, max_norm, norm_type)
    return _lookup(weight, input, padding, sparse)


def _shorten(weight: TableParameter, ids: Tensor, max_norm: float, norm_type: float) -> None:
    """Shorten the rows of `ids` to a norm."""
    with torch.no_grad():
        torch.embedding_renorm_(weight.detach(), ids.contiguous(), max_norm, norm_type)


def _kernel_embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if type(weight) is TableParameter and not scale_grad_by_freq and weight.dim() == 2:
        return _lookup(weight, indices, padding_idx, sparse)
    return NotImplemented


def _rows(weight: TableParameter, ids: Tensor) -> Tensor:
    """The rows of `ids`, from a table of any number of dimensions."""
    if weight.dim() == 2:
        return _lookup(weight, ids, -1, False)
    rows: Tensor = _Lookup.apply(weight, ids, -1)  # type: ignore[no-untyped-call]
    return rows


class _Lookup(torch.autograd.Function):
    """Rows of a table for which a sparse gradient from `torch.embedding` does not suffice.

    The table has more than two dimensions, or autograd could not add this gradient to its other gradients.
    The row `padding` has no gradient; -1 stands for no row.
    """

    @staticmethod
    def forward(ctx: Any, weight: TableParameter, ids: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table, ctx.place, ctx.padding = weight.store.name, weight.place, padding
        return weight.store.read(ids)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ids, rows = ctx.saved_tensors[0].reshape(-1), gradient.reshape(-1, *ctx.place.shape[1:])
        if ctx.padding >= 0:
            kept = ids != ctx.padding
            ids, rows = ids[kept], rows[kept]
        return _summable(ctx.table, ctx.place, _copied(ids), rows), None, None


class _View(torch.autograd.Function):
    """A view of some rows of a table: ``table[index]`` for an index of whole numbers and slices."""

    @staticmethod
    def forward(ctx: Any, weight: TableParameter, index: Any) -> Tensor:
        view: Any = weight.detach()[index]
        assert isinstance(view, TableTensor)
        ctx.view, ctx.numbers = view.place, view.row_numbers()
        ctx.table, ctx.place, ctx.weight = weight.store.name, weight.place, weakref.ref(weight)
        ctx.set_materialize_grads(False)
        return view

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        if gradient is None:
            return None, None
        _note_dense(ctx.weight())
        view, shape = ctx.view, ctx.place.shape[1:]
        rows = gradient.new_zeros(len(ctx.numbers), *shape)
        offset = view.storage_offset() % max(1, shape.numel())
        rows.as_strided(view.size(), view.stride(), offset).copy_(gradient)
        return _summable(ctx.table, ctx.place, ctx.numbers.to(gradient.device), rows), None


def _summable(table: str, place: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """The gradient of a table from that of some rows, in a form that autograd can add to any other."""
    if torch.is_grad_enabled():  # Graphs cannot add a dense gradient to a sparse one.
        return rows.new_zeros(place.shape).index_add(0, ids, rows)
    gradient = row_sparse(ids, rows, place.shape)
    if rows.dtype in _HALF:
        return RowGradient.of(GradientRows(table, gradient), place)  # type: ignore[no-any-return]
    return gradient


def _bag(
    input: Tensor,
    weight: Any,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    refused = sparse and mode == "max"
    possible = type(weight) is TableParameter and weight.dim() == 2 and isinstance(input, Tensor)
    if not possible or scale_grad_by_freq or refused:
        return NotImplemented
    if max_norm is not None:  # PyTorch also shortens the padding row
        _shorten(weight, input, max_norm, norm_type)
    plain = padding_idx is None and offsets is None and per_sample_weights is None and input.dim() == 2
    if plain and mode in ("sum", "mean") and input.shape[1] > 0:
        rows = _lookup(weight, input, -1, sparse)
        return rows[:, 0] if input.shape[1] == 1 else getattr(rows, mode)(1, dtype=rows.dtype)
    ids, none = input.reshape(-1), None
    if padding_idx is not None:
        kept = ids != padding_idx % len(weight)
        ids, none = ids[kept], int(kept.sum())
    rows = _lookup(weight, ids, -1, sparse)
    places = torch.arange(len(ids), device=input.device)
    if none is not None:  # padding has its place behind the rows
        rows = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
        places = torch.full_like(kept, none, dtype=torch.int64).masked_scatter(kept, places)
    return F.embedding_bag(
        places.view(input.shape),
        rows,
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=none,
    )


def _index_select(input: Tensor, dim: int, index: Tensor, **kwargs: Any) -> Any:
    if type(input) is TableParameter and dim in (0, -input.dim()) and index.dim() == 1 and not kwargs:
        return _rows(input, index)
    return NotImplemented


def _get_item(source: Tensor, index: Any) -> Any:
    if type(source) is not TableParameter:
        return NotImplemented
    parts = index if type(index) is tuple else (index,)
    if all(isinstance(part, int | slice) and not isinstance(part, bool) for part in parts):
        tracks = torch.is_grad_enabled() and source.requires_grad
        transformed = torch._C._are_functorch_transforms_active()
        if not tracks or transformed or not parts or parts[0] == slice(None):
            return NotImplemented
        view: Tensor = _View.apply(source, index)  # type: ignore[no-untyped-call]
        source.meets_dense = source.adds_to_dense = True
        return view
    first = parts[0] if parts else None
    if isinstance(first, list) and all(type(each) is int for each in first):
        first = torch.tensor(first, dtype=torch.int64, device="cpu")
    if not isinstance(first, Tensor) or first.dtype is torch.uint8 or isinstance(first, TableTensor):
        return NotImplemented
    if first.dtype is torch.bool:
        if first.dim() != 1 or len(first) != len(source):
            return NotImplemented
        first = first.nonzero()[:, 0]
    if first.is_floating_point():
        return NotImplemented
    ids = torch.where((first < 0) & (first >= -len(source)), first + len(source), first)
    if len(parts) == 1:
        return _rows(source, ids)
    places = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
    return _rows(source, ids.reshape(-1))[(places, *parts[1:])]


def _autograd_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    tables = [each for each in inputs if isinstance(each, TableParameter)]
    if tables and (args[4] if len(args) > 4 else kwargs.get("is_grads_batched")):
        raise RuntimeError(
            f"torch.autograd.grad with is_grads_batched is not possible for {tables[0]!r}, whose gradient is "
            "sparse: ask for one gradient at a time"
        )
    noted = [each.has_dense_part for each in tables]
    for each in tables:
        each.has_dense_part = False
    gradients = torch.autograd.grad(outputs, inputs, *args, **kwargs)
    shown = tuple(
        source._shown(gradient)
        if isinstance(source, TableParameter)
        and gradient is not None
        and gradient.is_sparse
        and not source.has_sparse_gradient
        else gradient
        for source, gradient in zip(inputs, gradients, strict=True)
    )
    for each, before in zip(tables, noted, strict=True):
        each.has_dense_part = before
    return shown


_LOOKUPS: dict[TorchFunction, TorchFunction] = {
    F.embedding: _embedding,
    torch.embedding: _kernel_embedding,
    F.embedding_bag: _bag,
    torch.index_select: _index_select,
    Tensor.index_select: _index_select,
    Tensor.__getitem__: _get_item,
    torch.autograd.grad: _autograd_grad,
}
