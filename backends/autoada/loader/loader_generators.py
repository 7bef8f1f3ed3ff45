"""Parts of a loader: the random generators that it draws from, and others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import FunctionType, GeneratorType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

from autoada.prediction.random_generators import (
    GENERATORS,
    quick_global_generators,
    same_state,
    set_states,
    states_of,
)

GeneratorStates = list[Any]
"""State of each generator."""

_DEPTH = 5
_ENTRIES = 64
"""Containers with more entries are data."""
_METHODS = ("__iter__", "__next__", "__call__", "__getitem__", "__getitems__")


def generators_of(loader: Any, alone: bool) -> list[Any]:
    """Return all generators that a loader may draw from.

    These are the global generators of PyTorch, NumPy and Python, and generators in the attributes of the
    loader, its samplers and its data set, and in the variables of their functions. If other threads draw from
    the global generators, so that `alone` is false, these are left out.
    """
    found = quick_global_generators() if alone else []
    return found + [own for own in parts_of(loader, GENERATORS) if all(own is not each for each in found)]


def parts_of(value: Any, kinds: type | tuple[type, ...]) -> list[Any]:
    """Return the parts of a loader or a data set that have one of some types, each once."""
    found: dict[int, Any] = {}
    _find(value, kinds, found, set(), _DEPTH)
    return list(found.values())


def draw_again(generators: Sequence[Any], draws: tuple[GeneratorStates, ...]) -> None:
    """Set the generators to the second of two states; they must have the first one.

    Raises
    ------
    RuntimeError
        If the generators do not have the first state.
    """
    if not draws:
        return
    drawn = [each for each in zip(generators, *draws, strict=True) if not same_state(*each[1:])]
    if any(not same_state(start, states_of([generator])[0]) for generator, start, _ in drawn):
        raise RuntimeError(
            "the loader drew random numbers for a batch that was fetched before its turn, and the loop, "
            "or another iterator, has drawn from the same generator since, so plain PyTorch would have "
            "drawn others: give the loader a generator of its own, as in "
            "DataLoader(generator=torch.Generator()), or AdaDataLoader lookahead=0"
        )
    for generator, _, after in drawn:
        set_states([generator], [after])


def _find(value: Any, kinds: Any, found: dict[int, Any], seen: set[int], depth: int) -> None:
    if isinstance(value, kinds):
        found[id(value)] = value
    elif id(value) not in seen and depth > 0:
        seen.add(id(value))
        for part in _parts(value, kinds):
            _find(part, kinds, found, seen, depth - 1)


def _parts(value: Any, kinds: Any) -> Iterator[Any]:
    """Return the objects in `value` that may contain what is searched."""
    if isinstance(value, (Tensor, np.ndarray, nn.Module, type, str, bytes)):
        return
    if isinstance(value, (dict, list, tuple, set)):
        if len(value) <= _ENTRIES:
            yield from value.values() if isinstance(value, dict) else value
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, FunctionType):
        yield from _variables(value, kinds)
    elif isinstance(value, GeneratorType):
        yield from () if value.gi_frame is None else value.gi_frame.f_locals.values()
    else:
        yield from getattr(value, "__dict__", {}).values()
        functions = (getattr(type(value), name, None) for name in _METHODS)
        for function in functions:
            if isinstance(function, FunctionType):
                yield from _variables(function, kinds)


def _variables(function: FunctionType, kinds: Any) -> Iterator[Any]:
    """Return the values that a function refers to, except for its arguments."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # The cell is empty.
            yield cell.cell_contents
    names = function.__code__.co_names
    known = function.__globals__
    yield from (known[name] for name in names if isinstance(known.get(name), kinds))
