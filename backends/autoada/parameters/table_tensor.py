"""Tensors that are views of a store of rows: a table of the parameter server, or a table's gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdRef

import adaps

TorchFunction = Callable[..., Any]
Convert = Callable[[Tensor], Tensor]
aten = torch.ops.aten
as_plain = torch._C.DisableTorchFunctionSubclass
"""Context of functions of PyTorch that skip ``__torch_function__``."""
_EMBEDDING, _ALIAS = aten.embedding.default, aten.alias.default
_PRODUCTS = {F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}
"""Functions that only read their arguments, and return new memory."""


class RowStore:
    """Rows that are read and written by their numbers."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def read(self, ids: Tensor) -> Tensor:
        """The rows of `ids`, new and of shape ``(*ids.shape, *row)``; IndexError if one does not exist."""
        raise NotImplementedError

    def viewed(self, ids: Tensor) -> Tensor:
        """As `read`, for rows of a view, whose numbers follow from its place."""
        return self.read(ids)

    def whole(self) -> Tensor:
        """All rows, which the caller does not change."""
        raise NotImplementedError

    def saved(self, ids: Tensor | None) -> Tensor | None:
        """Rows of a view, or all, for graphs that save them; None if graphs cannot save them.

        The memory follows later writes, or these writes end the graphs.
        """
        return None

    def fetch(self, ids: Tensor) -> Tensor:
        """As `read`, for rows that will be changed and written back."""
        return self.read(ids)

    def begin_update(self, depends: bool = True) -> bool:
        """Begin a write; with `depends`, the new values depend on the present ones.

        Returns whether all workers make the write together, which is an argument of the next two methods.
        """
        return False

    def end_update(self, together: bool) -> None:
        """End the computation of the new values, before they are written."""

    def write(self, ids: Tensor, rows: Tensor, together: bool = False) -> None:
        """Replace the rows of `ids`; each id occurs once."""
        raise NotImplementedError

    def add_view(self, view: TableTensor) -> None:
        """Note a new view other than a parameter, if views of these rows may be given another store."""


class RowsWithViews(RowStore):
    """Rows whose views can be given another store."""

    def __init__(self) -> None:
        self._views: list[WeakIdRef] = []
        self._most_views = 16

    def add_view(self, view: TableTensor) -> None:
        """Note a new view of these rows."""
        self._views.append(WeakIdRef(view))
        if len(self._views) > self._most_views:  # Many of them may be gone.
            self._views = [each for each in self._views if each() is not None]
            self._most_views = 16 + 2 * len(self._views)

    def views(self) -> list[TableTensor]:
        """The views that exist."""
        return [view for each in self._views if (view := each()) is not None]

    def move_views(self, store: RowsWithViews) -> None:
        """Let all views be views of another store with the same values."""
        for view in self.views():
            view.store = store
        store._views += self._views
        self._views = []


class RowsInMemory(RowsWithViews):
    """Rows that are a plain tensor: the values that a table had before it was given other data."""

    def __init__(self, name: str, values: Tensor) -> None:
        super().__init__()
        self.name = f"earlier values of {name}"
        self.shape, self.dtype, self.device = values.shape, values.dtype, values.device
        self._values = values

    def read(self, ids: Tensor) -> Tensor:
        """The rows of `ids`."""
        return self._values[ids.to(self.device)]

    def whole(self) -> Tensor:
        """All rows."""
        return self._values

    def write(self, ids: Tensor, rows: Tensor, together: bool = False) -> None:
        """Replace the rows of `ids`."""
        self._values[ids.to(self.device)] = rows


class TableTensor(Tensor):
    """A view of the rows of a store; it has a shape, strides, a dtype and a device, and no memory.

    Like any view of a contiguous tensor, it consists of a size, strides and an offset. Operations of PyTorch
    arrive here one level above their kernels. The schema of each declares which arguments it views, reads and
    writes, so one rule executes them all: a view is another `TableTensor`; rows that are read are fetched;
    rows that are written are fetched, changed and written back. Operations that index rows fetch and write
    only these rows.
    """

    store: RowStore
    place: Tensor
    """A tensor on the meta device with the view's size, strides and offset."""
    has_all_rows: bool
    """Whether this is the store's contents as they are, with all rows and in their shape."""
    convert: Convert | None = None
    """Gives the view of `place` in which its elements are of another dtype, such as complex numbers."""
    _aliases_values: bool = False
    """Whether an alias of this tensor is a plain tensor now."""

    @classmethod
    def of(
        cls,
        store: RowStore,
        place: Tensor | None = None,
        requires_grad: bool = False,
        convert: Convert | None = None,
    ) -> Any:
        """A view of `store` at `place`; without a place, of all its rows."""
        if place is None:
            place = torch.empty(store.shape, dtype=store.dtype, device="meta")
        if torch.is_inference_mode_enabled():  # a view of an ordinary tensor is an ordinary tensor
            with torch.inference_mode(False):
                return cls.of(store, place, requires_grad, convert)
        shown = place if convert is None else convert(place)
        tensor = Tensor._make_wrapper_subclass(
            cls,
            shown.size(),
            strides=shown.stride(),
            storage_offset=shown.storage_offset(),
            dtype=shown.dtype,
            device=store.device,
            requires_grad=requires_grad,
        )
        tensor.store, tensor.place = store, place
        tensor.has_all_rows = convert is None and place.shape == store.shape and place.is_contiguous()
        if convert is not None:
            tensor.convert = convert
        if not issubclass(cls, nn.Parameter):
            store.add_view(tensor)
        return tensor

    def values(self) -> Tensor:
        """The present values, a plain tensor that the caller does not change."""
        if self.has_all_rows:
            return self.store.whole()
        if self.place.numel() == 0:
            return torch.empty(self.shape, dtype=self.dtype, device=self.store.device)
        numbers = self._row_range()
        every = len(numbers) == self.store.shape[0]
        return self.view_of(self.store.whole() if every else self.store.viewed(self.row_numbers()))

    @classmethod
    def __torch_function__(
        cls, func: TorchFunction, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with as_plain():
            if func in _PRODUCTS:
                args = tuple(each.plain_view() if isinstance(each, TableTensor) else each for each in args)
            return func(*args, **(kwargs or {}))

    def plain_view(self) -> Tensor:
        """The values, as a plain tensor that is a view of this one to autograd.

        PyTorch's kernels read it without further calls of Python, in the backward pass, too. It has the
        version of the table's parameter, so that a graph that has saved it ends with the next step. Tensors
        that have another version, such as those from ``.data``, are returned themselves.
        """
        if not isinstance(self if self._base is None else self._base, nn.Parameter):
            return self
        self._aliases_values = True
        try:
            return _ALIAS(self)  # type: ignore[no-any-return]
        finally:
            self._aliases_values = False

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _EMBEDDING and isinstance(args[0], TableTensor) and args[0].has_all_rows:
            return args[0].store.read(args[1])
        rule = _RULES.get(func)
        if rule is not None and (output := rule(func, args, kwargs or {})) is not NotImplemented:
            return output
        return execute(func, args, kwargs or {})

    # Functions that reach a tensor's memory without PyTorch's dispatcher

    def take_data(self, value: Tensor) -> None:
        """Do the same as ``tensor.data = value``."""
        raise RuntimeError(
            f"{self!r} cannot be given other memory, as it is a view: change its values with copy_(), or "
            "give the new values a name of their own"
        )

    def numpy(self, *, force: bool = False) -> npt.NDArray[Any]:
        """The values, in memory that cannot be written."""
        del force
        array: npt.NDArray[Any] = self.values().detach().cpu().clone().numpy()
        array.flags.writeable = False  # a write to this copy would be lost
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        del copy
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def tolist(self) -> Any:
        """The values as nested lists of numbers."""
        return self.values().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.store.name!r}, shape={tuple(self.shape)})"

    def __format__(self, format_spec: str) -> str:
        # Tensor formats the number of a scalar only if it is of its own class.
        return format(self.item(), format_spec) if self.dim() == 0 else object.__format__(self, format_spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = memo.setdefault(id(self), self.values().clone())
        return copied

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"{self!r} is in the parameter server: save the wrapped model's state_dict() instead")

    def row_numbers(self) -> Tensor:
        """The store's rows from the first to the last that this view touches."""
        numbers = self._row_range()
        return torch.arange(numbers.start, numbers.stop, device="cpu")

    def _row_range(self) -> range:
        place, length = self.place, max(1, self.store.shape[1:].numel())
        first = last = place.storage_offset()
        last += sum((size - 1) * stride for size, stride in zip(place.size(), place.stride(), strict=True))
        return range(first // length, last // length + 1)

    def view_of(self, rows: Tensor) -> Tensor:
        """Return the view of the rows that it touches."""
        length = max(1, self.store.shape[1:].numel())
        place = self.place
        view = rows.as_strided(place.size(), place.stride(), place.storage_offset() % length)
        return view if self.convert is None else self.convert(view)


def _converted(name: str) -> Callable[[TableTensor], Any]:
    """A conversion to a number, which functions such as `torch.tensor` call while they do not dispatch."""

    def convert(self: TableTensor) -> Any:
        return getattr(self.values().detach(), name)()

    return convert


for _name in ("__float__", "__int__", "__index__", "__complex__"):
    setattr(TableTensor, _name, _converted(_name))


def _refused(name: str) -> Callable[..., NoReturn]:
    """A method that is refused because it needs memory."""

    def refuse(self: TableTensor, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(
            f"{name}() needs the memory of {self!r}, which has none: use a copy of its values, clone()"
        )

    return refuse


_DATA: Any = torch._C.TensorBase.data


def _set_data(tensor: Tensor, value: Tensor) -> None:
    """Do the same as PyTorch's setter, or raise RuntimeError if a plain tensor would lose its memory."""
    if isinstance(tensor, TableTensor) and isinstance(value, Tensor):
        tensor.take_data(value)
    elif isinstance(value, TableTensor):
        raise RuntimeError(
            f"a tensor was given {value!r} as its data, which has no memory that it could share: copy the "
            "values with tensor.data.copy_(…), or assign a copy of them, clone()"
        )
    else:
        _DATA.__set__(tensor, value)


# For all tensors of the process: PyTorch looks at the type of the tensor alone, so a plain tensor that is
# given a table's data would have no memory, and its next use would crash the process.
torch.Tensor.data = property(_DATA.__get__, _set_data)  # type: ignore[assignment]

for _name in ("data_ptr", "untyped_storage", "storage", "share_memory_", "__dlpack__"):
    setattr(TableTensor, _name, _refused(_name))


class _Memory:
    """The rows of one store that some views touch, to be changed.

    Views that overlap share memory here, as they do in PyTorch.
    """

    def __init__(self, store: RowStore, views: Sequence[TableTensor]) -> None:
        numbers = [each.row_numbers() for each in views if each.place.numel() > 0]
        self._first = min((int(each[0]) for each in numbers), default=0)
        end = max((int(each[-1]) + 1 for each in numbers), default=0)
        self._store = store
        self._rows = store.fetch(torch.arange(self._first, end, device="cpu"))

    def view(self, tensor: TableTensor) -> Tensor:
        """The memory of one of the views."""
        place = tensor.place
        before = self._first * self._store.shape[1:].numel()
        if place.numel() == 0:
            view = self._rows.new_empty(place.size())
        else:
            view = self._rows.as_strided(place.size(), place.stride(), place.storage_offset() - before)
        return view if tensor.convert is None else tensor.convert(view)

    def write_back(self, tensor: TableTensor, together: bool) -> None:
        """Write the rows of one of the views to the store."""
        if tensor.place.numel() > 0:
            numbers = tensor.row_numbers()
            self._store.write(numbers, self._rows[numbers - self._first], together)


class _Operation(NamedTuple):
    """The rule of an operation, from its schema."""

    refused: bool
    """Whether it changes how memory is used."""
    views: bool
    """Whether it returns views of its first argument."""
    writes: list[tuple[int, str]]
    """Positions and names of the arguments that it writes."""
    read: Callable[[TableTensor], Tensor]
    """Gives the values of an argument."""


@functools.cache
def _operation(func: Any) -> _Operation:
    arguments = func._schema.arguments
    returned = [each.alias_info for each in func._schema.returns]
    undeclared = _UNDECLARED_WRITES.get(func, ())
    return _Operation(
        torch.Tag.inplace_view in func.tags or func in _REFUSED,
        func in _UNDECLARED_VIEWS
        or (bool(returned) and all(alias is not None and not alias.is_write for alias in returned)),
        [
            (number, argument.name)
            for number, argument in enumerate(arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or argument.name in undeclared
        ],
        _of_whole_memory if func in _COUNT_FROM_START else TableTensor.values,
    )


def execute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation by its schema: view, fetch and write back the rows of its arguments."""
    operation = _operation(func)
    if operation.refused:
        _refuse(func, args)
    first = args[0] if args else None
    if operation.views and isinstance(first, TableTensor):
        view = _view_of(func, first, args, kwargs)
        if view is not None:
            return view
    if operation.writes and (written := _written(operation, args, kwargs)):
        return _change(func, args, kwargs, written)
    args, kwargs = pytree.tree_map_only(TableTensor, operation.read, (args, kwargs))
    return func(*args, **kwargs)


def tables_in(value: Any) -> list[TableTensor]:
    """The tables among arguments of an operation."""
    return [each for each in pytree.tree_leaves(value) if isinstance(each, TableTensor)]


def _written(operation: _Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[TableTensor]:
    """The tables and views that an operation writes, each once."""
    values = [args[number] if number < len(args) else kwargs.get(name) for number, name in operation.writes]
    return list({id(each): each for each in tables_in(values)}.values())


def _change(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[TableTensor]) -> Any:
    stores = {store: store.begin_update() for store in dict.fromkeys(each.store for each in written)}
    views = tables_in((args, kwargs))
    memory = {store: _Memory(store, [each for each in views if each.store is store]) for store in stores}
    changed = {id(each): memory[each.store].view(each) for each in written}

    def plain(value: TableTensor) -> Tensor:
        if id(value) in changed:
            return changed[id(value)]
        return memory[value.store].view(value) if value.store in memory else value.values()

    plain_args, plain_kwargs = pytree.tree_map_only(TableTensor, plain, (args, kwargs))
    output = func(*plain_args, **plain_kwargs)
    for store, together in stores.items():
        store.end_update(together)
    for each in written:
        shape, strides = changed[id(each)].shape, changed[id(each)].stride()
        if (shape, strides) != (each.shape, each.stride()):
            raise RuntimeError(
                f"{func} would give {each!r} the shape {tuple(shape)} and the strides {strides}: a table "
                "keeps its own; let the operation make a new tensor, and copy its values with copy_()"
            )
    for each in written:
        memory[each.store].write_back(each, stores[each.store])
    originals = {id(changed[id(each)]): each for each in written}
    return pytree.tree_map(lambda value: originals.get(id(value), value), output)


def _of_whole_memory(tensor: TableTensor) -> Tensor:
    """The values, with the view's offset from the beginning of the memory."""
    place = tensor.place
    if tensor.convert is not None:
        _refuse("as_strided", [tensor])
    return tensor.store.whole().as_strided(place.size(), place.stride(), place.storage_offset())


def _view_of(func: Any, base: TableTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The view; None if the operation makes a copy of these arguments, such as ``to(torch.float64)``."""
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": None if kwargs["device"] == base.device else kwargs["device"]}
    before = base.convert

    def convert(place: Tensor) -> Any:
        return func(place if before is None else before(place), *args[1:], **kwargs)

    places = convert(base.place)
    if isinstance(places, list | tuple):
        if before is not None:
            _refuse(func, args)
        return [TableTensor.of(base.store, place) for place in places]
    if places.untyped_storage()._cdata != base.place.untyped_storage()._cdata:
        return None
    if before is not None or places.dtype is not base.store.dtype or places.is_conj() or places.is_neg():
        return TableTensor.of(base.store, base.place, convert=convert)
    return TableTensor.of(base.store, places)


def _refuse(func: Any, args: Any) -> NoReturn:
    tensor = tables_in(args)[0]
    raise RuntimeError(
        f"{func} cannot be applied to {tensor!r}, as it changes how memory is used, and there is none here: "
        "apply it to a copy of the values, clone()"
    )


_REFUSED = {aten.set_.source_Tensor, aten.set_.source_Storage, aten.resize_.default, aten.resize_as_.default}


_COUNT_FROM_START = {aten.as_strided_copy.default, aten.as_strided_scatter.default}
"""Operations that count elements from the beginning of the memory, which is not that of a view."""
_UNDECLARED_VIEWS = {
    aten._unsafe_view.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
}
"""Operations that return views although their schemas do not declare it."""
_RUNNING = ("running_mean", "running_var")
_UNDECLARED_WRITES = {
    aten.native_batch_norm.default: _RUNNING,
    aten.cudnn_batch_norm.default: _RUNNING,
    aten.miopen_batch_norm.default: _RUNNING,
    aten.batch_norm_update_stats.default: _RUNNING,
}
"""Arguments that operations write although their schemas do not declare it."""


# Rules for operations that a few rows suffice for

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _by_rows(position: int, updates: bool = True) -> Rule:
    """The rule of an operation that indexes rows with its argument number `position`.

    Without `updates`, it can be repeated without an effect, so that workers need not agree on it.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        table, index = args[0], args[position]
        others = [*args[1:position], *args[position + 1 :], *kwargs.values()]
        if isinstance(index, list | tuple):
            ids, *rest = index
            others += rest
        else:
            ids = index
            if position == 2 and args[1] not in (0, -table.dim()):
                return NotImplemented
        if (
            not isinstance(table, TableTensor)
            or not table.has_all_rows
            or not isinstance(ids, Tensor)
            or ids.dtype in (torch.bool, torch.uint8)
            or tables_in(others)
        ):
            return NotImplemented
        if isinstance(index, list | tuple):
            ids = torch.where((ids < 0) & (ids >= -len(table)), ids + len(table), ids)
        unique, inverse = adaps.deduplicate(ids.detach().to("cpu", torch.int64).contiguous())
        writes = func._schema.arguments[0].alias_info is not None
        together = writes and updates and table.store.begin_update()
        rows = table.store.fetch(unique) if writes else table.store.read(unique)
        found = inverse.view(ids.shape).to(ids.device)
        chosen = [found, *index[1:]] if isinstance(index, list | tuple) else found
        output = func(rows, *args[1:position], chosen, *args[position + 1 :], **kwargs)
        if not writes:
            return output
        table.store.end_update(together)
        table.store.write(unique, rows, together)
        return table

    return rule


def _alias(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if not tensor._aliases_values or tensor.place.numel() == 0:
        return NotImplemented
    every = len(tensor._row_range()) == tensor.store.shape[0]
    memory = tensor.store.saved(None if every else tensor.row_numbers())
    return NotImplemented if memory is None else tensor.view_of(memory).detach()


def _detach(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    kind = TableTensor if isinstance(tensor, nn.Parameter) else type(tensor)
    return kind.of(tensor.store, tensor.place, convert=tensor.convert)


def _overwrite(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule of an operation that replaces all values, so that the present ones are not read."""
    target = args[0]
    others = [*args[1:], *kwargs.values()]
    if not isinstance(target, TableTensor) or target.convert is not None:
        return NotImplemented
    if not target.place.is_contiguous() or target.place.numel() == 0:
        return NotImplemented
    length = max(1, target.store.shape[1:].numel())
    if target.place.storage_offset() % length or target.place.numel() % length:
        return NotImplemented  # a part of a row stays as it is
    if any(isinstance(each, TableTensor) and each.store is target.store for each in others):
        return NotImplemented  # they may overlap
    plain = [each.values() if isinstance(each, TableTensor) else each for each in others]
    values = torch.empty(target.shape, dtype=target.dtype, device=target.store.device)
    together = target.store.begin_update(depends=False)
    func(values, *plain[: len(args) - 1], **dict(zip(kwargs, plain[len(args) - 1 :], strict=True)))
    target.store.end_update(together)
    target.store.write(target.row_numbers(), values.view(-1, *target.store.shape[1:]), together)
    return target


_RULES: dict[Any, Rule] = {
    _ALIAS: _alias,
    aten.detach.default: _detach,
    aten.index.Tensor: _by_rows(1),
    aten.index_put_.default: _by_rows(1),
    aten.embedding_renorm_.default: _by_rows(1, updates=False),
    aten.index_select.default: _by_rows(2),
    aten.index_fill_.int_Scalar: _by_rows(2),
    aten.index_fill_.int_Tensor: _by_rows(2),
    aten.index_copy_.default: _by_rows(2),
    aten.index_add_.default: _by_rows(2),
    aten.copy_.default: _overwrite,
    aten.fill_.Scalar: _overwrite,
    aten.fill_.Tensor: _overwrite,
    aten.zero_.default: _overwrite,
}
