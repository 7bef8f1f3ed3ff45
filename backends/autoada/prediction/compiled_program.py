"""Compiled programs: straight-line Python from a batch to the rows that it reads, sliced from a trace.

The generated source contains no data. Every key, number and function of the user is bound to a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from autoada.prediction.batch_structure import expression
from autoada.prediction.trace import Constant, Leaf, Ref, Trace, has_memory, mapped

_LITERALS = (int, float, bool, str, type(None))  # compared by value


class NotRecorded(Exception):
    """Raised if a value cannot be traced back to the batch."""


class CompiledProgram:
    """Computes some tensors of a trace from another batch.

    Raises
    ------
    NotRecorded
        If an output is not in the trace.
    """

    def __init__(self, trace: Trace, outputs: Sequence[Tensor], *, clone_leaves: bool = False) -> None:
        numbers = [_number(trace, tensor) for tensor in outputs]
        needed = trace.needed(numbers)
        self.draws = not needed.isdisjoint(trace.draws)
        """Whether the outputs depend on random draws. The program then makes all draws of the trace."""
        # Each draw depends on all earlier draws, also of earlier batches.
        self._needed = sorted(needed | trace.needed(trace.draws) if self.draws else needed)
        self.names = Names()
        self.outputs_follow_batch = all(
            any(isinstance(trace.nodes[source], Leaf) for source in trace.needed([number]))
            for number in numbers
        )
        """Whether every output depends on the batch."""
        self.obstacle = trace.obstacle() or self._own_obstacle(trace)
        """Reason why the program is valid for the recorded batch only."""
        short = {number: i for i, number in enumerate(self._needed)}
        lines, keys = [], []
        for number in self._needed:
            line, key = self._line(trace, number, short, clone_leaves)
            lines.append(f"    v{short[number]} = {line}\n")
            keys.append(key)
        result = ", ".join(f"v{short[number]}" for number in numbers)
        self.source = "def run(batch):\n" + "".join(lines) + f"    return [{result}]\n"
        """Program as Python source. Its variables are in `names`."""
        self.key = (tuple(keys), tuple(short[number] for number in numbers))
        """Key that is equal for equivalent programs."""
        exec(self.source, self.names.values)
        self._run: Callable[[Any], list[Tensor]] = self.names.values["run"]

    def __call__(self, batch: Any) -> list[Tensor]:
        """Compute the outputs for `batch`, as inference tensors. Draws come from the global generator."""
        with torch.inference_mode():
            return self._run(batch)

    def run(self, batch: Any) -> list[Tensor]:
        """Compute the outputs of a program without draws."""
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
        for number in self._needed:
            node = trace.nodes[number]
            if isinstance(node, Constant) and node.tensor.is_inference():
                return "ids come from an operation that cannot be recorded"
        return None

    def _line(self, trace: Trace, number: int, short: dict[int, int], clone: bool) -> tuple[str, Any]:
        """Return source and key of one node."""
        node = trace.nodes[number]
        if isinstance(node, Leaf):
            return expression(node.path, self.names.of) + (
                self._copy(trace.values[number]) if clone else ""
            ), node.path
        if isinstance(node, Constant):
            return self.names.of(node.tensor), ("constant", id(node.tensor))
        function = self.names.of(node.function)
        given = [self._text(value, short) for value in node.args]
        if node.kwargs:
            named = (
                f"{self.names.of(name)}: {self._text(value, short)}" for name, value in node.kwargs.items()
            )
            given.append(f"**{{{', '.join(named)}}}")
        call = f"{function}({', '.join(given)})"
        given_key = mapped((node.args, tuple(node.kwargs.items())), lambda value: _key(value, short))
        return call, (node.function, given_key)

    @staticmethod
    def _copy(leaf: Any) -> str:
        return ".clone()" if isinstance(leaf, Tensor) else ".copy()"

    def _text(self, value: Any, short: dict[int, int]) -> str:
        if isinstance(value, Ref):
            return f"v{short[value.node]}"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(self._text(part, short) for part in parts)})"
        if type(value) in (list, tuple):
            items = "".join(f"{self._text(item, short)}, " for item in value)
            return f"[{items}]" if type(value) is list else f"({items})"
        return self.names.of(value)


class Names:
    """Numbered variables of generated source, so that no value has to be written as text."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"slice": slice, "getattr": getattr}

    def of(self, value: Any) -> str:
        """Return a variable with `value`."""
        name = f"o{len(self.values)}"
        self.values[name] = value
        return name


class Guard:
    """Condition under which a program is valid for a batch.

    Properties that varied among the recorded batches are free. All others must be equal. The signatures
    (`autoada.prediction.batch_structure.signature`) belong to batches that gave the same program.
    """

    def __init__(self, signatures: Sequence[tuple[Any, ...]]) -> None:
        names = Names()
        conditions = [c for entries in zip(*signatures, strict=True) for c in _conditions(entries, names.of)]
        self.source = " and ".join(conditions) or "True"
        self._holds: Callable[[Any], bool] = eval(f"lambda batch: {self.source}", names.values)

    def __call__(self, batch: Any) -> bool:
        """Return whether the program is valid for `batch`."""
        try:
            return self._holds(batch)
        except (AttributeError, LookupError, TypeError):  # The batch has another structure.
            return False

    @staticmethod
    def applies(signatures: Sequence[tuple[Any, ...]]) -> bool:
        """Return whether the batches have the same leaves of the same rank, as a guard requires."""
        first = signatures[0]
        return all(
            len(other) == len(first)
            and all(
                a[0] == b[0]
                and len(a) == len(b)
                and (len(a) == 2 or (len(a[1]) == len(b[1]) and a[2] is b[2]))
                for a, b in zip(first, other, strict=True)
            )
            for other in signatures
        )


def _conditions(entries: tuple[tuple[Any, ...], ...], name: Callable[[Any], str]) -> Iterable[str]:
    first = entries[0]
    text = expression(first[0], name)
    if len(first) == 2:
        values = {entry[1] for entry in entries}
        if len(values) == 1 and type(first[1]) in _LITERALS and first[1] == first[1]:
            yield f"{text} == {name(first[1])}"
        elif isinstance(first[1], type):
            yield f"type({text}) is {name(first[1])}"
        return
    shapes = [entry[1] for entry in entries]
    pinned = [i for i, size in enumerate(shapes[0]) if all(shape[i] == size for shape in shapes)]
    if len(pinned) == len(shapes[0]):
        yield f"{text}.shape == {name(tuple(shapes[0]))}"
        return
    yield f"len({text}.shape) == {len(shapes[0])}"
    yield from (f"{text}.shape[{i}] == {name(shapes[0][i])}" for i in pinned)


def _number(trace: Trace, tensor: Tensor) -> int:
    number = trace.number(tensor)
    if number is None:
        raise NotRecorded("ids come from an operation that cannot be recorded")
    return number


def _key(value: Any, short: dict[int, int]) -> Any:
    if isinstance(value, Ref):
        return ("value", short[value.node])
    return (type(value), value) if isinstance(value, Hashable) else id(value)
