"""A parameter whose rows live in the parameter server."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autoada.parameters.remote_table import RemoteTable, Rows
from autoada.prediction import lookups
from autoada.prediction.operations import Kind, TorchFunction, kind_of, name_of

Handler = Callable[[TorchFunction, tuple[Any, ...], dict[str, Any]], Any]


class TableParameter(nn.Parameter):
    """Replaces a module's weight: it has the weight's shape and no memory.

    `F.embedding`, `F.embedding_bag`, `index_select` and indexing pull the rows that they read, and nothing
    else; any other use pulls the whole table. So every module that owns or borrows the parameter works as
    it is.
    """

    table: RemoteTable

    @staticmethod
    def of(table: RemoteTable, requires_grad: bool) -> TableParameter:
        """The parameter of `table`."""
        hollow = torch.empty(table.shape, device="meta", dtype=table.rows.dtype)
        parameter = torch.Tensor._make_subclass(TableParameter, hollow, requires_grad)
        parameter.table = table
        return parameter

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where its rows are wanted; libraries ask at each read, and torch's own way takes much longer."""
        return self.table.device

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the rows that were read, each row once: norms and scaling work on it."""
        return self.table.gradients.sum

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            raise ValueError("the gradient of a table can only be changed in place, or set to None")
        del self.grad

    @grad.deleter
    def grad(self) -> None:
        self.table.gradients.drop()

    def __repr__(self) -> str:  # type: ignore[override]
        return (
            f"TableParameter({self.table.name!r}, shape={tuple(self.table.shape)}, in the parameter server)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError(
            f"the table {self.table.name!r} is in the parameter server: copy autoada.unwrap(model) instead"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"the table {self.table.name!r} is in the parameter server: save model.state_dict() instead"
        )

    @classmethod
    def __torch_function__(
        cls, func: TorchFunction, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.embedding:  # nearly every read, and costs as much as the read itself
                return _embedding(func, args, kwargs)
            kind = kind_of(func)
            if kind is Kind.METADATA:
                return func(*args, **kwargs)
            handler: Handler = _HANDLERS.get(kind, _with_whole_tables)
            return handler(func, args, kwargs)


def check_replaceable(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise ValueError unless `replace_parameters` can do its work."""
    for name, parameter in parameters.items():
        if cast("Any", parameter)._use_count() > 1 or weakref.getweakrefs(parameter):
            raise ValueError(
                f"the parameter {name!r} is still part of an earlier forward pass, or referred to weakly: "
                "delete the outputs and losses before AdaModel wraps the model"
            )


def replace_parameters(parameters: Mapping[str, nn.Parameter], tables: Mapping[str, RemoteTable]) -> None:
    """Turn `parameters` into `TableParameter`s; they stay the same objects for all their holders."""
    for name, parameter in parameters.items():
        torch.utils.swap_tensors(parameter, TableParameter.of(tables[name], parameter.requires_grad))


def _embedding(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = kwargs
    if func is F.embedding and len(args) == 2:  # as modules call it
        ids, weight = args
    else:
        ids, weight = lookups.embedding_arguments(func, args, kwargs)
        names = lookups.EMBEDDING_NAMES if func is F.embedding else lookups.KERNEL_EMBEDDING_NAMES
        given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not isinstance(weight, TableParameter):
        return _with_whole_tables(func, args, kwargs)
    padding = given.get("padding_idx")
    if padding is not None and func is not F.embedding and padding < 0:
        padding = None  # as the kernel has it
    if given.get("max_norm") is None and not given.get("scale_grad_by_freq"):
        read = _read_as_asked(weight, ids, padding)
        if read is not None:
            return read
    rows = _read(weight, ids)
    if given.get("max_norm") is not None:
        weight.table.shrink_norms(rows, given["max_norm"], given.get("norm_type", 2.0))
    if padding is not None:
        padding = weight.table.position(rows, padding)
    by_frequency = given.get("scale_grad_by_freq", False)
    if padding is None and not by_frequency and rows.values.is_cpu:
        # The same rows and gradients; of an embedding torch needs twice as long to add the latter up.
        picked = rows.values.index_select(0, rows.inverse.reshape(-1))
        return picked.view(*rows.inverse.shape, *picked.shape[1:])
    return torch.embedding(rows.values, rows.inverse, -1 if padding is None else padding, by_frequency)


def _bag(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bag = lookups.bag_arguments(func, args, kwargs)
    if func is not F.embedding_bag or not isinstance(bag.table, TableParameter):
        return _with_whole_tables(func, args, kwargs)
    table = bag.table.table
    given = {**dict(zip(lookups.BAG_NAMES, args, strict=False)), **kwargs}
    padding = bag.padding
    if padding is None and given.get("max_norm") is None and not given.get("scale_grad_by_freq"):
        values = _read_as_asked(bag.table, bag.ids)
        if values is not None:
            positions = torch.arange(bag.ids.numel(), device=values.device).view(bag.ids.shape)
            if _is_one_each(bag, positions) and given.get("per_sample_weights") is None:
                return values.flatten(0, bag.ids.dim() - 1)
            return F.embedding_bag(positions, values.flatten(0, bag.ids.dim() - 1), **_of_bags(given))
    if padding is None:
        rows = _read(bag.table, bag.ids)
        inverse = rows.inverse
    else:
        rows, inverse = _skip_padding(bag.table, bag.ids, padding % table.shape[0])
        padding = len(rows.values)
    if given.get("max_norm") is not None:
        table.shrink_norms(rows, given["max_norm"], given.get("norm_type", 2.0))
    values = rows.values
    if given.get("scale_grad_by_freq") and values.requires_grad:
        values = _scaled_by_frequency(values, inverse)
    if padding is not None:
        values = torch.cat([values, values.new_zeros(1, *table.shape[1:])])
    return F.embedding_bag(inverse, values, padding_idx=padding, **_of_bags(given))


def _is_one_each(bag: lookups.BagArguments, positions: Tensor) -> bool:
    """Whether every bag has one id, and so is its row."""
    if bag.offsets is None:
        return bag.ids.dim() == 2 and bag.ids.shape[1] == 1
    same = bag.offsets.dtype is positions.dtype and bag.offsets.is_cpu
    return same and torch.equal(bag.offsets, positions)


def _of_bags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `F.embedding_bag` that do not concern rows."""
    names = ("offsets", "mode", "per_sample_weights", "include_last_offset")
    return {name: given[name] for name in names if name in given}


def _skip_padding(weight: TableParameter, ids: Tensor, padding: int) -> tuple[Rows, Tensor]:
    """The rows of all ids but `padding`, which gets the position after the last row."""
    kept = ids != padding
    rows = _read(weight, ids[kept])
    inverse = torch.full_like(ids, len(rows.values), dtype=torch.int64)
    inverse[kept] = rows.inverse
    return rows, inverse


def _scaled_by_frequency(values: Tensor, inverse: Tensor) -> Tensor:
    """The rows, with gradients divided by how often each was read.

    PyTorch's CPU kernel for bags divides by the count of another row (it indexes the counts by the row's
    rank).
    """
    counts = torch.bincount(inverse.flatten(), minlength=len(values))[: len(values)].clamp(min=1)
    scaled = values.view_as(values)
    scaled.register_hook(lambda gradient: gradient / counts.unsqueeze(1))
    return scaled


def _index_select(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source, dim, index = lookups.index_select_arguments(args, kwargs)
    if not isinstance(source, TableParameter) or dim not in (0, -len(source.table.shape)):
        return _with_whole_tables(func, args, kwargs)
    if index.dim() == 1 and (read := _read_as_asked(source, index)) is not None:
        return read
    rows = _read(source, index)
    return rows.values.index_select(0, rows.inverse)


def _get_item(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source, index = args
    if not isinstance(source, TableParameter):
        return _with_whole_tables(func, args, kwargs)
    first = index[0] if type(index) is tuple and index else index
    if isinstance(first, Tensor) and first.dtype is not torch.bool:
        ids: Tensor | None = lookups.from_start(first, source.table.shape[0])
    elif isinstance(first, Tensor) and first.dim() > 1:  # a mask of single values
        ids = None
    else:
        ids = lookups.item_rows(source.table.shape[0], index, lambda function, *given: function(*given))
    if ids is None:
        return _with_whole_tables(func, args, kwargs)
    if first is index and isinstance(first, Tensor) and (read := _read_as_asked(source, ids)) is not None:
        return read
    rows = _read(source, ids)
    picked = rows.inverse[0] if isinstance(first, int) else rows.inverse
    return rows.values[(picked, *index[1:])] if type(index) is tuple else rows.values[picked]


def _alias(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    if name_of(func) == "requires_grad_":
        return func(*args, **kwargs)
    if name_of(func) == "contiguous":
        return source
    return TableParameter.of(source.table, requires_grad=False)


def _assign(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    if attribute == "data":
        _table_of(args).write(args[1])
        return None
    return func(*args, **kwargs)


def _write(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An in-place change of the whole table, such as an initialisation."""
    target = args[0] if args else kwargs.get("tensor")  # functions of nn.init give it by name
    if not isinstance(target, TableParameter):
        return _with_whole_tables(func, args, kwargs)
    with torch.no_grad():
        values = target.table.rows.read().to(target.table.device)

        def plain(value: Any) -> Any:
            return values if value is target else _whole(value)

        func(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})
        target.table.write(values)
    return target


def _read_as_asked(parameter: TableParameter, ids: Tensor, padding: int | None = None) -> Tensor | None:
    """The row of each id, where the table can give it in one go."""
    if torch._C._functorch.is_batchedtensor(ids):
        return None
    return parameter.table.read_as_asked(ids, parameter.requires_grad, padding)


def _read(parameter: TableParameter, ids: Tensor) -> Rows:
    """The rows of `ids`; under `torch.vmap` those of all samples, and each one's positions among them."""
    functorch = torch._C._functorch
    if not functorch.is_batchedtensor(ids):
        return parameter.table.lookup(ids, parameter.requires_grad)
    level, dimension = functorch.maybe_get_level(ids), functorch.maybe_get_bdim(ids)
    allowed = functorch.get_inplace_requires_grad_allowed()
    functorch.set_inplace_requires_grad_allowed(True)  # the pulled rows are a leaf outside of the transform
    try:
        with torch._C._DisableFuncTorch():
            rows = _read(parameter, functorch.get_unwrapped(ids))
    finally:
        functorch.set_inplace_requires_grad_allowed(allowed)
    return rows._replace(inverse=functorch._add_batch_dim(rows.inverse, dimension, level))


def _with_whole_tables(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*_whole(args), **_whole(kwargs))


def _whole(values: Any) -> Any:
    return pytree.tree_map(
        lambda value: value.table.whole(value.requires_grad) if isinstance(value, TableParameter) else value,
        values,
    )


def _table_of(args: tuple[Any, ...]) -> RemoteTable:
    return next(value.table for value in args if isinstance(value, TableParameter))


_HANDLERS: dict[Kind, Handler] = {
    Kind.EMBEDDING: _embedding,
    Kind.BAG: _bag,
    Kind.INDEX_SELECT: _index_select,
    Kind.GET_ITEM: _get_item,
    Kind.ALIAS: _alias,
    Kind.MOVE: lambda func, args, kwargs: args[0],
    Kind.IGNORED: _assign,
    Kind.INPLACE: _write,
    Kind.SET_ITEM: _write,
    Kind.TEXT: lambda func, args, kwargs: repr(args[0]),
}
