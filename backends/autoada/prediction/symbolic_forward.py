"""Symbolic forward: the model's own code runs, and only values that depend on the batch alone are computed.

Everything derived from parameters is an *unknown value*: a meta tensor with a shape and no data. A lookup in
a table records its real indices and gives an unknown value. Interception is at the level of torch functions,
so ``max_norm`` never renormalises and no kernel of a table ever runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autoada.prediction import lookups
from autoada.prediction.meta_model import MetaModel
from autoada.prediction.meta_outputs import meta_output
from autoada.prediction.operations import (
    SHAPE_INPLACE,
    Arguments,
    CallMode,
    Keywords,
    Kind,
    TorchFunction,
    dtype_of_move,
    kind_of,
    name_of,
    with_device,
    with_first,
)
from autoada.prediction.random_generators import SimulationRng
from autoada.prediction.source_location import user_location
from autoada.prediction.speculation import BOOLEAN_INDEX, Places, Speculation
from autoada.prediction.trace import Trace, constant
from autoada.prediction.unknown_values import (
    ForeignWrite,
    Form,
    UnknownValueRead,
    UnknownValues,
    forms_in,
    unknown,
    unknowns_in,
)


class SymbolicForward(CallMode):
    """Simulates one batch once.

    With `protect`, an in-place write to foreign memory ends it with `ForeignWrite`; otherwise the write goes
    to a copy and is lost.
    """

    def __init__(
        self,
        meta_model: MetaModel,
        speculation: Speculation,
        rng: SimulationRng,
        *,
        protect: bool,
        trace: Trace | None,
        explain: bool,
    ) -> None:
        super().__init__()
        self._speculation = speculation
        self._places = Places()
        self.draws = 0
        """Number of random draws that were made."""
        self.left_draws = False
        """Whether some draws were not made."""
        self._rng = rng
        self.values = UnknownValues(meta_model, trace, explain=explain)
        self._protect = protect
        self._trace = trace
        self._device = torch.device("cpu")
        self._always: dict[Kind, Callable[[TorchFunction, Arguments, Keywords], Any]] = {
            Kind.METADATA: self._metadata,
            Kind.DEVICE: self._device_of,
            Kind.EMBEDDING: self._embedding,
            Kind.BAG: self._bag,
            Kind.INDEX_SELECT: self._index_select,
            Kind.GET_ITEM: self._get_item,
            Kind.RANDOM: self._random,
            Kind.STOCHASTIC: self._stochastic,
            Kind.NORMALIZE: self._normalize,
            Kind.MOVE: self._move,
            Kind.ALIAS: self._alias,
            Kind.IGNORED: lambda func, args, kwargs: None,
            Kind.GRADIENT: self._gradient,
        }
        self._on_unknowns: dict[Kind, Callable[[TorchFunction, Arguments, Keywords], Any]] = {
            Kind.VALUE: self._escape,
            Kind.INPLACE: self._write_unknown,
            Kind.SET_ITEM: self._write_unknown,
            Kind.DATA_SHAPED: self._data_shaped,
            Kind.FINITE: self._finite,
        }

    def call(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        kind = kind_of(func)
        always = self._always.get(kind)
        if always is not None:
            return always(func, args, kwargs)
        if not self.values.touches((*args, *kwargs.values()) if kwargs else args):
            return self._real(kind, func, args, kwargs)
        output = self._on_unknowns.get(kind, self._general)(func, args, kwargs)
        self.values.remember_origin(func, output)
        return output

    # Accesses

    def _apply(self, function: TorchFunction, *args: Any) -> Any:
        """Run a helper operation on real ids and record it."""
        output = function(*args)
        if self._trace is not None:
            self._trace.operation(function, args, {}, output)
        return output

    def _embedding(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        given = lookups.named_arguments(func, args, kwargs)
        ids, weight = given["input"], given["weight"]
        if not self._reads(weight, ids, ids):
            return self._real(Kind.GENERAL, func, args, kwargs)
        return unknown((*ids.shape, *weight.shape[1:]), weight.dtype)

    def _bag(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        given = lookups.named_arguments(func, args, kwargs)
        ids, table, offsets = given["input"], given["weight"], given.get("offsets")
        rows, padding = ids, given.get("padding_idx")
        if padding is not None and self.values.table_name(table) and not self.values.is_unknown(ids):
            rows = self._apply(lookups.without, ids, padding % len(table))
        if not self._reads(table, rows, ids, offsets):
            return self._real(Kind.GENERAL, func, args, kwargs)
        bags = len(ids) if offsets is None else len(offsets) - bool(given.get("include_last_offset"))
        return unknown((bags, table.shape[1]), table.dtype)

    def _index_select(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        given = lookups.named_arguments(func, args, kwargs)
        source, dim, index = given["input"], given["dim"], given["index"]
        by_rows = dim in (0, -source.dim())
        if not (self._reads(source, index, index) if by_rows else self.values.touches((source, index))):
            return self._real(Kind.GENERAL, func, args, kwargs)
        return meta_output(self.values, func, args, kwargs)

    def _reads(self, source: Tensor, ids: Tensor, *inputs: Tensor | None) -> bool:
        """Record a read of rows `ids` of `source`; return False if `source` and all inputs are known."""
        table = self.values.table_name(source)
        if table is not None:
            self.values.read_rows(table, ids)
        elif self.values.touches((source, *inputs)):
            self.values.rows_of_dense(source)
        else:
            return False
        return True

    def _get_item(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        source, index = args
        parts = index if type(index) is tuple else (index,)
        table = self.values.table_name(source)
        unknown_index = self.values.touches(parts)
        if table is not None:
            first = parts[0] if parts else None
            if isinstance(first, Tensor) and self.values.is_unknown(first):
                self.values.read_rows(table, first)
            else:
                rows = lookups.item_rows(source.shape[0], index, self._apply)
                if rows is None:
                    self.values.read_in_full(table)
                else:
                    self.values.read_rows(table, rows)
        elif not unknown_index and not self.values.is_unknown(source):
            return self._real(Kind.GET_ITEM, func, args, kwargs)
        elif parts and isinstance(parts[0], Tensor):
            self.values.rows_of_dense(source)
        if isinstance(index, Tensor) and index.dtype is torch.int64:  # Torch's meta kernel is slow.
            return unknown((*index.shape, *source.shape[1:]), source.dtype)
        index = tuple(meta for part in parts for meta in self._meta_index(part))
        source = self.values.as_meta(source)
        if table is not None:  # A view of the parameter would be taken for the table.
            source = unknown(source.shape, source.dtype)
        return func(source, index)

    def _meta_index(self, part: Any) -> tuple[Any, ...]:
        if not isinstance(part, Tensor):
            return (part,)
        if part.dtype not in (torch.bool, torch.uint8):
            return (self.values.as_meta(part),)
        if self.values.is_unknown(part):
            count = self._speculated(BOOLEAN_INDEX)
            return tuple(unknown((count,), torch.int64) for _ in part.shape)
        return tuple(unknown(positions.shape, torch.int64) for positions in part.nonzero(as_tuple=True))

    # Operations with or without unknown values

    def _metadata(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        if self._trace is not None and args and isinstance(args[0], Tensor) and not args[0].is_meta:
            self._trace.shape_read(args[0])
        return func(*args, **kwargs)

    def _device_of(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        # Ids that are made on the device of a parameter must stay real.
        return self._device if self.values.is_unknown(args[0]) else func(*args, **kwargs)

    def _alias(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        source = args[0] if args else kwargs["input"]
        if not self.values.is_unknown(source):
            return self._real(Kind.ALIAS, func, args, kwargs)
        return self.values.as_meta(source)

    def _move(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        source = args[0]
        dtype = dtype_of_move(func, args, kwargs)
        if self.values.is_unknown(source):
            if dtype is None or dtype == source.dtype:
                return self._alias(func, args, kwargs)
            self.values.touches((source,))
            return unknown(source.shape, dtype)
        if func.__name__ not in ("to", "type_as"):
            return source
        if dtype is not None:
            return self._real(Kind.GENERAL, Tensor.to, (source, dtype), {})
        return self._real(Kind.GENERAL, Tensor.clone, (source,), {}) if kwargs.get("copy") else source

    def _gradient(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        return tuple(unknown(x.shape, x.dtype) for x in ((inputs,) if isinstance(inputs, Tensor) else inputs))

    def _stochastic(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        source = args[0] if args else kwargs["input"]
        known = not self.values.touches((source,))
        if _trains(func, args, kwargs):
            self._draw_without_value(func, args, kwargs)
        elif known:
            return source
        if kwargs.get("inplace"):
            return self._write_unknown(func, (source,), {})
        return unknown(source.shape, source.dtype)

    def _normalize(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        args, kwargs = with_first(args, kwargs)
        trains = kwargs.get("training", args[5] if len(args) > 5 else kwargs.get("use_input_stats", True))
        if not self.values.touches((*args, *kwargs.values())) and not trains:
            return self._real(Kind.NORMALIZE, func, args, kwargs)
        return unknown(args[0].shape, args[0].dtype)

    def _random(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        name = name_of(func)
        if name.endswith("_"):
            args, kwargs = with_first(args, kwargs)
        unknown_argument = self.values.touches((*args, *kwargs.values()))
        if unknown_argument or (not self._rng.foresees_draws and kwargs.get("generator") is None):
            self._draw_without_value(func, args, kwargs)
            if name.endswith("_"):
                return args[0] if args[0].is_meta else self._write_unknown(func, args, kwargs)
            options = {key: value for key, value in kwargs.items() if key != "generator"}
            if not any(isinstance(value, Tensor) for value in pytree.tree_leaves((args, options))):
                options["device"] = "meta"
            return meta_output(self.values, func, args, options)
        options = with_device(kwargs, self._device)
        if name.endswith("_") and isinstance(args[0], Tensor):
            args = (self._writable(func, args[0]), *args[1:])
        output = func(*args, **options)
        self.draws += 1
        if self._trace is not None:
            self._trace.drawn(func, args, options, output)
        return output

    def _draw_without_value(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> None:
        """Draw the same number of values as the real call; the output is unknown."""
        if not self._rng.draws_all or not self._rng.foresees_draws:
            self.left_draws = True
            return
        given, options = forms_in((args, with_device(kwargs, self._device)))
        before = torch.get_rng_state()
        _spend(func, given, **options)
        if torch.equal(before, torch.get_rng_state()):
            return
        self.draws += 1
        if self._trace is not None:
            self._trace.drawn(_spend, (func, given), options, object())

    # Operations without unknown values

    def _real(self, kind: Kind, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        if kind is Kind.INPLACE or kind is Kind.SET_ITEM or kwargs.get("inplace"):
            return self._write(func, args, kwargs)
        if isinstance(kwargs.get("out"), Tensor):
            kwargs = {**kwargs, "out": self._writable(func, kwargs["out"])}
        kwargs = with_device(kwargs, self._device)
        if kind is Kind.VALUE or kind is Kind.DATA_SHAPED:
            self._places.next(name_of(func))
        if kind is Kind.VALUE:
            if self._trace is not None:
                self._trace.value_read(func, args, kwargs)
            if func.__name__ in ("numpy", "__array__") and not args[0].is_inference():
                args = (args[0].clone(), *args[1:])  # Writes by NumPy are not observed, so they go to a copy.
        output = func(*args, **kwargs)
        if self._trace is not None and kind is not Kind.VALUE:
            self._trace.operation(func, args, kwargs, output)
        return output

    def _write(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        args, kwargs = with_first(args, kwargs)
        target = args[0]
        writable = self._writable(func, target)
        args = (writable, *args[1:])
        output = func(*args, **kwargs)
        if self._trace is not None and writable is target:
            self._trace.written(func, args, kwargs, target)
        return output

    def _writable(self, func: TorchFunction, tensor: Tensor) -> Tensor:
        """Return `tensor` if the simulation created it. It creates only inference tensors."""
        if tensor.is_inference():
            return tensor
        if self._protect:
            raise ForeignWrite(tensor)
        if self._trace is not None:
            self._trace.foreign_write(func)
        return tensor.clone()

    # Operations on unknown values

    def _general(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        if name_of(func) in _WITH_DROPOUT:
            self._draw_without_value(func, args, kwargs)
        output = meta_output(self.values, func, args, kwargs)
        if kwargs.get("out") is not None:
            for target in pytree.tree_leaves(kwargs["out"]):
                if isinstance(target, Tensor) and not target.is_meta:
                    self.values.overwrite(self._writable(func, target))
            return kwargs["out"]
        return output

    def _data_shaped(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        if name_of(func) == "masked_select":
            given = {**dict(zip(("input", "mask"), args, strict=False)), **kwargs}
            source, mask = given["input"], given["mask"]
            if not self.values.is_unknown(mask):
                shape = torch.broadcast_shapes(source.shape, mask.shape)
                return unknown((int(mask.expand(shape).sum()),), source.dtype)
        return unknowns_in(self._speculated(name_of(func)))

    def _speculated(self, name: str) -> Any:
        """Return the last value of the real forward at this place."""
        place, number = self._places.next(name)
        value = self._speculation.value_at(place, number)
        if value is None:
            raise UnknownValueRead(*place)
        return value

    def _escape(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        value = self._speculated(name_of(func))
        if isinstance(value, np.ndarray):
            if value.shape != tuple(args[0].shape):
                raise UnknownValueRead(name_of(func), user_location())
            return value.copy()
        return value

    def _finite(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        """Return the known result for values that are all finite, as parameters are expected to be."""
        if not self._speculation.expects_finite(self._places.next(name_of(func))[0]):
            return self._general(func, args, kwargs)
        source = args[0] if args else kwargs["input"]
        return self._apply(constant, name_of(func) == "isfinite", tuple(source.shape))

    def _write_unknown(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        args, kwargs = with_first(args, kwargs)
        target = args[0]
        if not target.is_meta:
            target = self._writable(func, target)
            self.values.overwrite(target)
        elif func.__name__ in SHAPE_INPLACE:
            return func(*self.values.as_meta(args), **kwargs)
        return target


_WITH_DROPOUT = {
    "multi_head_attention_forward", "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu",
}  # fmt: skip
"""Operations that contain a dropout."""


def _trains(func: TorchFunction, args: Arguments, kwargs: Keywords) -> bool:
    """Return whether an operation of kind `STOCHASTIC` draws."""
    name = name_of(func)
    if name == "gumbel_softmax":
        return True
    position = 3 if name == "rrelu" else 2
    return bool(kwargs.get("training", args[position] if len(args) > position else "alpha" not in name))


def _spend(func: TorchFunction, args: Arguments, /, **kwargs: Any) -> None:
    """Draw the random numbers that `func` draws for arguments of these forms."""
    given, options = pytree.tree_map_only(Form, Form.ones, (args, kwargs))
    with contextlib.suppress(Exception):  # The check of later rows detects draws that this could not make.
        func(*given, **options)
