"""Trace of the real operations of a simulation, which computes every row id from the batch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoada.prediction.batch_structure import SCALARS, Path, children, leaves
from autoada.prediction.operations import Arguments, Keywords, Kind, TorchFunction, kind_of, name_of


@dataclass(frozen=True)
class Ref:
    """Value of an earlier node."""

    node: int


@dataclass(frozen=True)
class Leaf:
    """Tensor, array or other object of the batch, or the batch itself."""

    path: Path


@dataclass(frozen=True)
class Constant:
    """Tensor that is neither in the batch nor computed, such as a buffer or an attribute."""

    tensor: Tensor


@dataclass(frozen=True)
class Operation:
    """Call whose tensor arguments are `Ref`s."""

    function: TorchFunction
    args: Arguments
    kwargs: Keywords = field(default_factory=dict)


Node = Leaf | Constant | Operation


class Trace:
    """Records the real operations of one simulation, or of the loop's code before a call."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.nodes: list[Node] = []
        self.values: list[Any] = []
        self._alive: list[Tensor] = []  # Identities stay unique while their objects live.
        self.leaves = leaves(batch)
        self.accesses = 0
        """Number of accesses so far."""
        self.draws: list[int] = []
        """Numbers of the nodes that are random draws."""
        self.written_storages: list[tuple[int, Tensor]] = []
        self._numbers: dict[int, int] = {}
        self._by_memory: dict[tuple[Any, ...] | None, int] = {}
        self._searched = 0
        self._obstacles: list[tuple[int, str]] = []
        self._shape_reads: list[tuple[int, int]] = []
        entries = [((step,), value) for step, value in children(batch) if step is not None]
        for path, value in [((), batch), *entries, *self.leaves]:
            if value is batch or not isinstance(value, SCALARS):
                self._add(value, Leaf(path))

    # Events of a simulation

    def operation(self, function: TorchFunction, args: Arguments, kwargs: Keywords, output: Any) -> None:
        """Record a call without side effects that returned `output`."""
        if isinstance(output, Tensor):
            if id(output) not in self._numbers or not any(output is a for a in args):
                self._add(output, self._call(function, args, kwargs))
        elif isinstance(output, (list, tuple)) and not isinstance(output, torch.Size):
            whole = self._add(output, self._call(function, args, kwargs))
            for i, item in enumerate(output):
                if isinstance(item, Tensor):
                    self._add(item, Operation(operator.getitem, (Ref(whole), i)))

    def written(self, function: TorchFunction, args: Arguments, kwargs: Keywords, target: Tensor) -> None:
        """Record an in-place change of `target`, which the simulation owns."""
        known = self._numbers.get(id(target))
        if known is None or isinstance(self.nodes[known], Constant):
            self._obstacle("forward changes its own state in place")
        call = self._call(_set_item if kind_of(function) is Kind.SET_ITEM else function, args, kwargs)
        self._add(target, call)
        if has_memory(target):
            self.written_storages.append((target.untyped_storage().data_ptr(), target))

    def foreign_write(self, function: TorchFunction) -> None:
        """Record a dropped write to memory that the simulation does not own."""
        self._obstacle(f"`{name_of(function)}` writes to memory of neither the batch nor the model")

    def value_read(self, function: TorchFunction, args: Arguments, kwargs: Keywords) -> None:
        """Record that Python received a value. One that is computed from `constant` alone does not vary."""
        sources = self.needed(references(self._call(function, args, kwargs)))
        if any(number in self.draws or not self._is_computed(self.nodes[number]) for number in sources):
            self._obstacle(f"Python reads values (`{name_of(function)}`)")

    def shape_read(self, tensor: Tensor) -> None:
        """Record that Python received a shape."""
        number = self._numbers.get(id(tensor))
        if number is not None and isinstance(self.nodes[number], Operation):
            self._shape_reads.append((self.accesses, number))

    def drawn(self, function: TorchFunction, args: Arguments, kwargs: Keywords, output: Any) -> None:
        """Record a random draw."""
        if name_of(function).endswith("_"):
            self._obstacle(f"`{name_of(function)}` draws in place")
        call = self._call(function, args, kwargs)
        self.draws.append(self._add(output, call))

    # Source of a compiled program

    def number(self, tensor: Any) -> int | None:
        """Return the node that created a tensor or another object; None if it was not recorded."""
        number = self._numbers.get(id(tensor))
        if number is not None:
            return number
        number = self._with_memory_of(tensor)
        if number is not None and type(self.values[number]) is not type(tensor):
            if not isinstance(tensor, Tensor) or not isinstance(self.values[number], np.ndarray):
                return None
            return self._add(tensor, Operation(torch.from_numpy, (Ref(number),)))  # Torch does not report it.
        if number is not None:  # Under vmap a lookup receives another object with the same memory.
            self._numbers[id(tensor)] = number
            self._alive.append(tensor)
        return number

    def needed(self, numbers: Iterable[int]) -> set[int]:
        """Return the given nodes and all nodes that they depend on."""
        needed: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number in needed:
                continue
            needed.add(number)
            node = self.nodes[number]
            if isinstance(node, Operation):
                waiting += references(node)
        return needed

    def computed(self, tensor: Tensor) -> bool:
        """Return whether `tensor` is in the batch or was created by an operation."""
        number = self.number(tensor)
        return number is not None and not isinstance(self.nodes[number], Constant)

    def obstacle(self) -> str | None:
        """Return the reason why the way from batch to ids may differ for another batch.

        Events after the last access have no effect.
        """
        for when, reason in self._obstacles:
            if when < self.accesses:
                return reason
        read = self.needed(number for when, number in self._shape_reads if when < self.accesses)
        if any(self._is_data_shaped(self.nodes[number]) for number in read):
            return "Python reads a shape that depends on values"
        return None

    def _add(self, value: Any, node: Node) -> int:
        self._numbers[id(value)] = len(self.nodes)
        self.nodes.append(node)
        self.values.append(value)
        return len(self.nodes) - 1

    def _with_memory_of(self, tensor: Tensor) -> int | None:
        """Return the last node whose value has the memory of `tensor`; None if there is none."""
        memory = _memory_of(tensor)
        if memory is None:
            return None
        for number in range(self._searched, len(self.values)):
            self._by_memory[_memory_of(self.values[number])] = number
        self._searched = len(self.values)
        return self._by_memory.get(memory)

    def _call(self, function: TorchFunction, args: Arguments, kwargs: Keywords) -> Operation:
        named = {key: mapped(value, self._referred) for key, value in kwargs.items()}
        return Operation(function, mapped(args, self._referred), named)

    def _referred(self, value: Any) -> Any:
        """Return the reference to a tensor, or to an array of the batch; other values are unchanged."""
        if isinstance(value, np.ndarray):
            number = self._numbers.get(id(value))
            return value if number is None else Ref(number)
        if isinstance(value, Tensor):
            number = self.number(value)
            return Ref(self._add(value, Constant(value)) if number is None else number)
        return value

    def _obstacle(self, reason: str) -> None:
        self._obstacles.append((self.accesses, reason))

    def _is_computed(self, node: Node) -> bool:
        """Return whether a value is made from others, or by `constant`."""
        return isinstance(node, Operation) and (node.function is constant or bool(references(node)))

    def _is_data_shaped(self, node: Node) -> bool:
        """Return whether the shape of a node's value depends on the values of its arguments."""
        if not isinstance(node, Operation):
            return False
        if kind_of(node.function) is Kind.GET_ITEM:
            indices = (self.values[number] for number in references(node)[1:])
            return any(isinstance(index, Tensor) and index.dtype is torch.bool for index in indices)
        name = name_of(node.function)
        return (
            kind_of(node.function) is Kind.DATA_SHAPED
            or name in _DATA_SHAPED_NAMES
            or (name == "where" and len(node.args) == 1)
        )


_DATA_SHAPED_NAMES = {
    "_return_output", "_return_inverse", "_return_counts", "unique_dim", "without", "_true_rows",
}  # fmt: skip


def constant(value: bool, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor with one value."""
    return torch.full(shape, value, device="cpu")


_transformed = torch._C._functorch.is_functorch_wrapped_tensor


def has_memory(tensor: Tensor) -> bool:
    """Return whether the tensor has a memory address. Sparse tensors and wrapper tensors have none."""
    return not (
        tensor.is_meta
        or _transformed(tensor)
        or tensor.layout is not torch.strided
        or torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    )


def _memory_of(value: Any) -> tuple[Any, ...] | None:
    """Return address and form of a tensor's or an array's memory; None if it has no memory or no elements."""
    if isinstance(value, Tensor) and value.numel() > 0 and has_memory(value):
        return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
    if isinstance(value, np.ndarray) and value.nbytes > 0:
        strides = tuple(stride // value.itemsize for stride in value.strides)
        return value.ctypes.data, getattr(torch, str(value.dtype), None), value.shape, strides
    return None


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return `value` with `leaf` applied to what its lists, tuples and slices contain."""
    if type(value) in (list, tuple):
        return type(value)(mapped(item, leaf) for item in value)
    if isinstance(value, slice):
        return slice(*(mapped(part, leaf) for part in (value.start, value.stop, value.step)))
    return leaf(value)


def references(operation: Operation) -> list[int]:
    """Return the numbers of all nodes to which the arguments refer."""
    found: list[Ref] = []
    given = (operation.args, tuple(operation.kwargs.values()))
    mapped(given, lambda value: found.append(value) if isinstance(value, Ref) else None)
    return [each.node for each in found]


def _set_item(target: Tensor, index: Any, value: Any) -> Tensor:
    target[index] = value
    return target
