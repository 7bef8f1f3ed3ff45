"""Compiled programs: straight-line Python from a batch to the rows that it reads, sliced from a trace.

The generated source contains no data. Every key, number and function of the user is bound to a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from autoada.prediction.trace import Constant, Leaf, Ref, Trace, has_memory


class NotRecorded(Exception):
    """Raised if a value cannot be traced back to the batch."""


class CompiledProgram:
    """Computes some values of a trace from another batch.

    Raises
    ------
    NotRecorded
        If an output is not in the trace.
    """

    def __init__(self, trace: Trace, outputs: Sequence[Any], *, clone_leaves: bool = False) -> None:
        numbers = [number for number in map(trace.number, outputs) if number is not None]
        if len(numbers) < len(outputs):
            raise NotRecorded("ids come from an operation that cannot be recorded")
        needed = trace.needed(numbers)
        self.draws = not needed.isdisjoint(trace.draws)
        """Whether the outputs depend on random draws. The program then makes all draws of the trace."""
        # Each draw depends on all earlier draws, also of earlier batches.
        self._needed = sorted(needed | trace.needed(trace.draws) if self.draws else needed)
        self.outputs_follow_batch = all(
            any(isinstance(trace.nodes[source], Leaf) for source in trace.needed([number]))
            for number in numbers
        )
        """Whether every output depends on the batch."""
        self.obstacle = trace.obstacle() or self._own_obstacle(trace)
        """Reason why the program is valid for the recorded batch only."""
        self._variables = {number: f"v{i}" for i, number in enumerate(self._needed)}
        self._bound: list[Any] = []
        lines = [f"    {v} = {self._line(trace, n, clone_leaves)}\n" for n, v in self._variables.items()]
        result = ", ".join(self._variables[number] for number in numbers)
        source = "def run(batch):\n" + "".join(lines) + f"    return [{result}]\n"
        self.key = source, [_identity(value) for value in self._bound]
        """Key that is equal for equivalent programs."""
        namespace = {f"o{i}": value for i, value in enumerate(self._bound)}
        exec(source, namespace)
        self._run: Callable[[Any], list[Any]] = namespace["run"]

    def __call__(self, batch: Any) -> list[Any]:
        """Compute the outputs for `batch`, as inference tensors. Draws come from the global generator."""
        with torch.inference_mode():
            return self._run(batch)

    def _own_obstacle(self, trace: Trace) -> str | None:
        values = [trace.values[number] for number in self._needed]
        holders: dict[int, set[int]] = {}
        for value in values:
            if isinstance(value, Tensor) and has_memory(value):
                holders.setdefault(value.untyped_storage().data_ptr(), set()).add(id(value))
        if any(
            holders.get(storage, {id(target)}) != {id(target)} for storage, target in trace.written_storages
        ):
            return "ids are written in place through another view"
        nodes = [trace.nodes[number] for number in self._needed]
        if any(isinstance(node, Constant) and node.tensor.is_inference() for node in nodes):
            return "ids come from an operation that cannot be recorded"
        return None

    def _line(self, trace: Trace, number: int, clone: bool) -> str:
        """Return the source of one node's value."""
        node = trace.nodes[number]
        if isinstance(node, Leaf):
            source = "batch"
            for step, key in node.path:
                read = "{}[{}]" if step == "item" else "getattr({}, {})"
                source = read.format(source, self._bind(key))
            copy = ".clone()" if isinstance(trace.values[number], Tensor) else ".copy()"
            return source + copy if clone else source
        if isinstance(node, Constant):
            return self._bind(node.tensor)
        given = [self._text(value) for value in node.args]
        if node.kwargs:
            named = (f"{self._bind(name)}: {self._text(value)}" for name, value in node.kwargs.items())
            given.append(f"**{{{', '.join(named)}}}")
        return f"{self._bind(node.function)}({', '.join(given)})"

    def _text(self, value: Any) -> str:
        """Return the source of an argument."""
        if isinstance(value, Ref):
            return self._variables[value.node]
        if isinstance(value, slice):
            return f"slice({', '.join(map(self._text, (value.start, value.stop, value.step)))})"
        if type(value) in (list, tuple):
            items = "".join(f"{self._text(item)}, " for item in value)
            return f"[{items}]" if type(value) is list else f"({items})"
        return self._bind(value)

    def _bind(self, value: Any) -> str:
        """Return the variable with `value`, so that the value need not be written as text."""
        self._bound.append(value)
        return f"o{len(self._bound) - 1}"


def _identity(value: Any) -> Any:
    by_value = isinstance(value, Hashable) and not isinstance(value, Tensor)
    return (type(value), value) if by_value else id(value)
