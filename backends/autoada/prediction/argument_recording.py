"""Recording of how the user's loop turns a batch into the model's arguments.

After a batch is handed out and before the model is called, the user's code moves, casts, slices and
concatenates tensors. A recording of these operations is a program from the batch's leaves to the arguments.
It can run for batches that are still in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

from autoada.prediction.batch_structure import Path, leaves, read
from autoada.prediction.compiled_program import CompiledProgram, NotRecorded
from autoada.prediction.operations import (
    Arguments,
    CallArguments,
    CallMode,
    Keywords,
    Kind,
    TorchFunction,
    dtype_of_move,
    kind_of,
    with_device,
    with_first,
)
from autoada.prediction.trace import Trace
from autoada.prediction.unknown_values import unknown

Prepare = Callable[[Any], CallArguments]


class ArgumentRecorder(CallMode):
    """Records the operations on a batch after it was handed out, without changing anything."""

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self._trace = Trace(batch)
        self._active = False
        self._called = False
        self._lost: list[Tensor] = []

    def call(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        output = func(*args, **kwargs)
        if not self._active:
            return output
        kind = kind_of(func)
        if kind is Kind.VALUE:
            self._value_read(func, args, kwargs)
        elif kind in (Kind.INPLACE, Kind.SET_ITEM):
            args, kwargs = with_first(args, kwargs)
            for target in args[0] if isinstance(args[0], (list, tuple)) else args[:1]:
                self._written(func, args, kwargs, target)
        elif kind is Kind.RANDOM:
            self._lost.append(output)  # Draws of the loop itself cannot be predicted.
        elif kind is Kind.MOVE:
            self._moved(func, args, kwargs, output)
        elif kind not in (Kind.METADATA, Kind.DEVICE, Kind.IGNORED):
            self._trace.operation(func, args, with_device(kwargs, _HOST), output)
        return output

    def start(self) -> None:
        """Begin to record, or resume. Modes that the user's code has entered stay above."""
        self._active = True
        modes = _popped()
        if modes and isinstance(modes[-1], DeviceContext):  # Its exit expects it at the bottom.
            torch.overrides._push_mode(modes.pop())
        for mode in [self, *reversed(modes)]:
            torch.overrides._push_mode(mode)

    def stop(self) -> None:
        """Stop to record. Modes that the user's code entered in between stay."""
        self._active = False
        for mode in reversed(_popped()):
            if mode is not self:
                torch.overrides._push_mode(mode)

    def give_up(self, output: Any) -> None:
        """Mark `output` of the model as unknown, with all arguments of later calls that depend on it."""
        self._called = True
        self._lost += [leaf for _, leaf in leaves(output) if isinstance(leaf, Tensor)]

    def arguments(self, args: Arguments, kwargs: Keywords) -> RecordedArguments:
        """Return the way from the batch to these arguments.

        Raises
        ------
        NotRecorded
            If Python reads values on the way.
        """
        batch = self._trace.batch
        given, structure = pytree.tree_flatten_with_path((args, kwargs), is_leaf=lambda value: value is batch)
        lost = {id(tensor) for tensor in self._lost}
        sources: list[_Source] = []
        for place, value in given:
            name = _argument_name(place)
            plain = isinstance(value, _PLAIN) and value is not batch
            number = None if plain else self._trace.number(value)
            before = () if number is None else self._trace.needed([number])
            if id(value) in lost or any(id(self._trace.values[node]) in lost for node in before):
                sources.append(_Source("unknown", UnknownArgument.like(value, self._trace.leaves), name))
            elif number is not None:
                sources.append(_Source("computed", value, name))
            else:
                sources.append(_Source("constant" if plain else "outside", value, name))
        self._trace.accesses += 1  # Everything until now matters.
        recorded = RecordedArguments(self._trace, sources, structure)
        if recorded.obstacle is not None:
            raise NotRecorded(recorded.obstacle)
        return recorded

    def _value_read(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> None:
        # A tensor that requires a gradient comes from the model, not from the batch.
        of_batch = args and isinstance(args[0], Tensor) and not args[0].requires_grad
        if of_batch and self._trace.number(args[0]) is not None:
            self._trace.value_read(func, args, kwargs)

    def _written(self, func: TorchFunction, args: Arguments, kwargs: Keywords, target: Any) -> None:
        if not isinstance(target, Tensor):
            return
        if self._called and not self._trace.computed(target):  # For example, a gradient or a running mean.
            self._lost.append(target)
        elif args and target is args[0]:
            self._trace.written(func, args, kwargs, target)
        else:
            self._trace.foreign_write(func)

    def _moved(self, func: TorchFunction, args: Arguments, kwargs: Keywords, output: Tensor) -> None:
        """Record only the dtype of a move, because row ids are computed in host memory."""
        if output is args[0]:
            return
        dtype = dtype_of_move(func, args, kwargs)
        if dtype is None:
            self._trace.operation(Tensor.clone, args[:1], {}, output)
        else:
            self._trace.operation(Tensor.to, (args[0], dtype), {"copy": True}, output)


class UnknownArgument(NamedTuple):
    """A tensor that may depend on parameters, or on draws of the loop. Only its form is known."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    follows: tuple[Path | None, ...]
    """Tensor of the batch with a first dimension of the same size, for each dimension."""

    @classmethod
    def like(cls, tensor: Tensor, found: Iterable[tuple[Path, Any]]) -> UnknownArgument:
        """Return the form of `tensor`, in relation to a batch with these leaves."""
        sizes = {
            leaf.shape[0]: path
            for path, leaf in found
            if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) > 1
        }
        return cls(tuple(tensor.shape), tensor.dtype, tuple(sizes.get(size) for size in tensor.shape))

    def tensor(self, batch: Any) -> Tensor:
        """Return a tensor without data, for use with `batch`."""
        sizes = zip(self.shape, self.follows, strict=True)
        shape = [size if path is None else len(read(batch, path)) for size, path in sizes]
        with torch._C.DisableTorchFunction():
            return unknown(shape, self.dtype)


class _Source(NamedTuple):
    """Source of a value among the arguments; `name` is the argument's name.

    The value of kind ``computed`` is the recorded one. A program computes it for other batches, or reads it
    from them.
    """

    kind: str
    value: Any
    name: str

    @property
    def is_number(self) -> bool:
        return self.kind == "constant" and type(self.value) in (int, float)

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that is equal for equivalent sources. It has the types of constants, because 1 equals True."""
        if self.kind == "computed":
            return (self.kind,)
        if self.kind == "outside":
            return self.kind, id(self.value), getattr(self.value, "_version", None)
        if self.kind == "unknown":
            return self.kind, self.value.dtype, len(self.value.shape)
        return self.kind, type(self.value), None if self.is_number else self.value

    def of(self, batch: Any) -> Any:
        """Return the value for `batch`, if no program computes it."""
        return self.value.tensor(batch) if self.kind == "unknown" else self.value


class RecordedArguments:
    """Turns a batch into the model's arguments as the user's loop does."""

    def __init__(self, trace: Trace, sources: Sequence[_Source], structure: Any) -> None:
        self._program = CompiledProgram(trace, [each.value for each in sources if each.kind == "computed"])
        self._sources = sources
        self._structure = structure
        self._trace: Trace | None = trace
        self.obstacle = self._program.obstacle
        """Reason why the way from batch to arguments may differ for another batch."""
        self.numbers = tuple(source.value for source in sources if source.is_number)
        """Numbers among the arguments that do not come from the batch, such as the number of a step."""
        self.key = (self._program.key, [source.key for source in sources], structure)
        """Key that is equal for equivalent bindings, without regard to numbers."""
        kinds = {source.kind for source in sources}
        self.follows_batch = self._program.outputs_follow_batch and "outside" not in kinds
        """Whether every tensor among the arguments is made from the batch, or is known to be unknown."""
        self.uses_batch = "computed" in kinds
        self.unknown = tuple(dict.fromkeys(source.name for source in sources if source.kind == "unknown"))
        """Names of the arguments that are unpredictable or contain an unpredictable value."""

    def merged(self, other: RecordedArguments) -> RecordedArguments | None:
        """Return a copy in which tensors that `other` makes differently are unknown; None if useless."""
        if self._structure != other._structure or self._trace is None:
            return None
        sources: list[_Source] = []
        for mine, others in zip(self._sources, other._sources, strict=True):
            source, value, before = mine, mine.value, others.value
            if self._key_of(mine) != other._key_of(others):
                if not isinstance(value, Tensor) or not isinstance(before, Tensor):
                    return None
                if (value.dtype, value.dim()) != (before.dtype, before.dim()):
                    return None
                source = mine._replace(kind="unknown", value=UnknownArgument.like(value, self._trace.leaves))
            sources.append(source)
        result = RecordedArguments(self._trace, sources, self._structure)
        result.seal()
        return result if result.uses_batch else None

    def seal(self) -> None:
        """Forget values that only `merged` needs."""
        self._trace = None
        self._sources = [
            each._replace(value=None) if each.kind == "computed" else each for each in self._sources
        ]

    def _key_of(self, source: _Source) -> Any:
        """Return the key of one source, with its part of the program."""
        if source.kind != "computed":
            return source.key
        assert self._trace is not None
        return CompiledProgram(self._trace, [source.value]).key

    def __call__(self, batch: Any) -> CallArguments:
        """Return the positional and keyword arguments of the model for `batch`."""
        computed = iter(self._program(batch))
        values = [next(computed) if each.kind == "computed" else each.of(batch) for each in self._sources]
        arguments: CallArguments = pytree.tree_unflatten(values, self._structure)
        return arguments


def _argument_name(place: Sequence[Any]) -> str:
    """Return the name of the argument at a place of ``(args, kwargs)``, for messages."""
    if place[0].idx == 0:
        return f"argument {place[1].idx + 1}"
    return f"argument {place[1].key!r}"


def _popped() -> list[TorchFunctionMode]:
    """Deactivate all active modes and return them, the innermost first."""
    count = torch._C._len_torch_function_stack()
    return [torch.overrides._pop_mode() for _ in range(count)]


_HOST = torch.device("cpu")
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
