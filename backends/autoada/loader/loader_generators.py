"""Random generators that a loader draws from: the global generators, and its own."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from types import FunctionType, GeneratorType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autoada.prediction.rng_snapshot import GENERATORS, generator_state, set_generator_state

GeneratorStates = list[Any]
"""State of each generator."""

_DEPTH = 5
_ENTRIES = 32
"""Containers with more entries are data."""
_METHODS = ("__iter__", "__next__", "__call__", "__getitem__", "__getitems__")


class _NumpyMemory:
    """Memory of NumPy's global generator, which is read in a fraction of the time of its ``get_state``.

    It does not include the second number of a pair of Gaussians, which NumPy keeps for the next call.
    """

    def __init__(self) -> None:
        generator = np.random.mtrand._rand._bit_generator
        self._address = generator.ctypes.state_address
        self._bytes = (len(generator.state["state"]["key"]) + 1) * 4

    def get_state(self) -> bytes:
        return ctypes.string_at(self._address, self._bytes)

    def set_state(self, state: bytes) -> None:
        ctypes.memmove(self._address, state, self._bytes)


def _global_generators() -> list[Any]:
    """Return the global generators; their states are read for each batch that is fetched ahead."""
    numpy = np.random.mtrand._rand
    quick = type(numpy._bit_generator) is np.random.MT19937
    return [torch.default_generator, _NumpyMemory() if quick else numpy, random._inst]


class LoaderGenerators:
    """Reads and sets the states of all generators that a loader may draw from.

    These are the global generators of PyTorch, NumPy and Python, and generators in the attributes of the
    loader, its samplers and its data set, and in the variables of their functions.

    Parameters
    ----------
    loader : object
        Loader that draws.
    alone : bool
        Whether no other thread draws from the global generators. Otherwise the global generators are left
        out.
    """

    def __init__(self, loader: Any, alone: bool = True) -> None:
        self._alone = alone
        self._all = _global_generators() if alone else []
        seen: set[int] = set()
        _find(loader, self._all, seen, _DEPTH)

    def states(self) -> GeneratorStates:
        """State of each generator."""
        return [generator_state(each) for each in self._all]

    def global_states(self) -> GeneratorStates:
        """Complete state of each global generator."""
        if not self._alone:
            return []
        generators = (torch.default_generator, np.random.mtrand._rand, random._inst)
        return [generator_state(each) for each in generators]

    def set(self, states: GeneratorStates, present: GeneratorStates) -> None:
        """Set the generators to `states`; `present` are their current states."""
        for generator, state, now in zip(self._all, states, present, strict=True):
            if not _same(state, now):
                set_generator_state(generator, state)

    def draw_again(self, draws: tuple[GeneratorStates, ...]) -> None:
        """Set the generators to the second of two states; they must have the first one.

        Raises
        ------
        RuntimeError
            If the generators do not have the first state.
        """
        if not draws:
            return
        start, after = draws
        present = self.states()
        changed = [not _same(a, b) for a, b in zip(start, after, strict=True)]
        if any(c and not _same(a, b) for c, a, b in zip(changed, start, present, strict=True)):
            raise RuntimeError(
                "the loader drew random numbers for a batch that was fetched before its turn, and the loop, "
                "or another iterator, has drawn from the same generator since, so plain PyTorch would have "
                "drawn others: give the loader a generator of its own, as in "
                "DataLoader(generator=torch.Generator()), or AdaDataLoader lookahead=0"
            )
        for generator, state, c in zip(self._all, after, changed, strict=True):
            if c:
                set_generator_state(generator, state)

    @staticmethod
    def same(first: GeneratorStates, second: GeneratorStates) -> bool:
        """Return whether nothing was drawn between two states."""
        return all(map(_same, first, second))


def _find(value: Any, found: list[Any], seen: set[int], depth: int) -> None:
    """Add the generators in `value` to `found`."""
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, GENERATORS):
        if all(value is not each for each in found):
            found.append(value)
        return
    for part in _parts(value):
        _find(part, found, seen, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    """Return the objects in `value` that may contain generators."""
    if isinstance(value, (Tensor, np.ndarray, nn.Module, type, str, bytes)):
        return
    if isinstance(value, dict):
        yield from value.values() if len(value) <= _ENTRIES else ()
    elif isinstance(value, (list, tuple, set)):
        yield from value if len(value) <= _ENTRIES else ()
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, FunctionType):
        yield from _variables(value)
    elif isinstance(value, GeneratorType):
        yield from () if value.gi_frame is None else value.gi_frame.f_locals.values()
    else:
        yield from getattr(value, "__dict__", {}).values()
        functions = (getattr(type(value), name, None) for name in _METHODS)
        for function in functions:
            if isinstance(function, FunctionType):
                yield from _variables(function)


def _variables(function: FunctionType) -> Iterator[Any]:
    """Return the values that a function refers to, except for its arguments."""
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_set(cell))
    names = function.__code__.co_names
    known = function.__globals__
    yield from (known[name] for name in names if isinstance(known.get(name), GENERATORS))


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, dict):
        return all(_same(value, b[name]) for name, value in a.items())
    if isinstance(a, tuple):
        return len(a) == len(b) and (a == b if isinstance(a[0], int) else all(map(_same, a, b)))
    return bool(a == b)
