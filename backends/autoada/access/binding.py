"""How the user's loop turns a batch into the model's arguments: recorded while it does so.

Between the hand-out of a batch and the call of the model, the user's own code moves, casts, slices and
concatenates. A recording of that is a program from the batch's leaves to the arguments, and can be run for
batches that are still in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

from autoada.access.batches import Path, leaves, read
from autoada.access.operations import Kind, TorchFunction, dtype_of_move, kind_of
from autoada.access.program import NotRecorded, Program
from autoada.access.tape import Tape

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Prepare = Callable[[Any], Arguments]


class Recording(TorchFunctionMode):
    """Follows what happens to a batch after it was handed out; changes nothing.

    Parameters
    ----------
    batch : object
        The batch.
    """

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self._tape = Tape(batch)
        self._active = False
        self._lost: list[Tensor] | None = None

    def __torch_function__(
        self,
        func: TorchFunction,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if not self._active:
            return output
        kind = kind_of(func)
        if kind is Kind.VALUE:
            self._value_read(func, args)
        elif kind in (Kind.INPLACE, Kind.SET_ITEM):
            for target in args[0] if isinstance(args[0], (list, tuple)) else args[:1]:
                self._written(func, args, kwargs, target)
        elif kind is Kind.RANDOM:
            self._tape.foreign_write(func)  # draws of the loop itself cannot be foreseen
        elif kind is Kind.MOVE:
            self._moved(func, args, kwargs, output)
        elif kind not in (Kind.METADATA, Kind.DEVICE, Kind.IGNORED, Kind.TEXT):
            if kwargs.get("device") is not None:
                kwargs = {**kwargs, "device": _HOST}
            self._tape.operation(func, args, kwargs, output)
        return output

    def start(self) -> None:
        """Begin to listen, or go on. Modes that the user's code has entered stay above."""
        self._active = True
        modes = _popped()
        if modes and isinstance(modes[-1], DeviceContext):  # its exit looks for it at the bottom
            torch.overrides._push_mode(modes.pop())
        for mode in [self, *reversed(modes)]:
            torch.overrides._push_mode(mode)

    def stop(self) -> None:
        """Stop to listen. Modes that the user's code entered in between stay."""
        self._active = False
        for mode in reversed(_popped()):
            if mode is not self:
                torch.overrides._push_mode(mode)

    def give_up(self, output: Any) -> None:
        """The model gave `output`: arguments of a further call that depend on it cannot be foreseen."""
        self._lost = self._lost or []
        self._lost += [leaf for _, leaf in leaves(output) if isinstance(leaf, Tensor)]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Binding:
        """The way from the batch to these arguments.

        Raises
        ------
        NotRecorded
            If an argument cannot be traced back to the batch.
        """
        batch = self._tape.batch
        values, structure = pytree.tree_flatten((args, kwargs), is_leaf=lambda value: value is batch)
        paths = {id(leaf): path for path, leaf in self._tape.leaves if not isinstance(leaf, _PLAIN)}
        paths |= {id(item): (("item", key),) for key, item in _items(batch) if not isinstance(item, _PLAIN)}
        sources: list[_Source] = []
        tensors: list[Tensor] = []
        for value in values:
            if value is batch:
                sources.append(_Source("batch", None))
            elif isinstance(value, Tensor):
                sources.append(_Source("tensor", len(tensors)))
                tensors.append(value)
            elif id(value) in paths:
                sources.append(_Source("leaf", paths[id(value)]))
            elif isinstance(value, _PLAIN):
                sources.append(_Source("constant", value))
            else:
                raise NotRecorded(f"an argument of type {type(value).__name__} does not come from the batch")
        self._tape.accesses += 1  # everything until now matters
        program = Program(self._tape, tensors)
        if program.obstacle is not None:
            raise NotRecorded(program.obstacle)
        if any(constant is lost for constant in program.constants for lost in self._lost or ()):
            raise NotRecorded("an argument depends on what happened after an earlier call of the model")
        return Binding(program, tuple(sources), structure)

    def _value_read(self, func: TorchFunction, args: tuple[Any, ...]) -> None:
        # what requires a gradient is the model's doing, not the batch's
        of_batch = args and isinstance(args[0], Tensor) and not args[0].requires_grad
        if of_batch and self._tape.number(args[0]) is not None:
            self._tape.value_read(func)

    def _written(
        self, func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any
    ) -> None:
        if not isinstance(target, Tensor):
            return
        if self._lost is not None and not self._tape.computed(target):  # a gradient, a running mean
            self._lost.append(target)
        elif target is args[0]:
            self._tape.written(func, args, kwargs, target)
        else:
            self._tape.foreign_write(func)

    def _moved(
        self, func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> None:
        """Row ids are found in host memory: only what a move does to the dtype is followed."""
        if output is args[0]:
            return
        dtype = dtype_of_move(func, args, kwargs)
        if dtype is None:
            self._tape.operation(Tensor.clone, args[:1], {}, output)
        else:
            self._tape.operation(Tensor.to, (args[0], dtype), {"copy": True}, output)


class _Source(NamedTuple):
    kind: str
    value: Any

    @property
    def is_number(self) -> bool:
        return self.kind == "constant" and type(self.value) in (int, float)


class Binding:
    """Turns a batch into the model's arguments as the user's loop does.

    Attributes
    ----------
    key : tuple
        Equal for bindings that do the same, numbers left aside.
    numbers : tuple of int and float
        Those among the arguments that do not come from the batch, such as that of a step.
    follows_batch : bool
        Whether every tensor among the arguments is made from the batch.
    uses_batch : bool
        Whether anything among the arguments comes from the batch.
    """

    def __init__(self, program: Program, sources: tuple[_Source, ...], structure: Any) -> None:
        self._program = program
        self._sources = sources
        self._structure = structure
        self.numbers = tuple(source.value for source in sources if source.is_number)
        kinds = [(source.kind, *_comparable(source)) for source in sources]
        self.key = (program.key, kinds, structure)
        self.follows_batch = program.outputs_follow_batch
        self.uses_batch = any(source.kind != "constant" for source in sources)

    def __call__(self, batch: Any) -> Arguments:
        """Positional and keyword arguments of the model for `batch`."""
        computed = self._program.run(batch)
        values = [self._value(source, batch, computed) for source in self._sources]
        arguments: Arguments = pytree.tree_unflatten(values, self._structure)
        return arguments

    @staticmethod
    def _value(source: _Source, batch: Any, computed: list[Tensor]) -> Any:
        if source.kind == "batch":
            return batch
        if source.kind == "tensor":
            return computed[source.value]
        if source.kind == "leaf":
            path: Path = source.value
            return read(batch, path)
        return source.value


def _comparable(source: _Source) -> tuple[Any, Any]:
    """What two sources that do the same agree in: a constant's type too, as 1 equals True."""
    return type(source.value), None if source.is_number else source.value


def _popped() -> list[TorchFunctionMode]:
    """All active modes, the innermost first; they are not active any more."""
    count = torch._C._len_torch_function_stack()
    return [torch.overrides._pop_mode() for _ in range(count)]


def _items(batch: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(batch, dict):
        return batch.items()
    return enumerate(batch) if isinstance(batch, (list, tuple)) else ()


_HOST = torch.device("cpu")
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
