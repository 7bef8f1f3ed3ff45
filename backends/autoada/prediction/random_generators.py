"""States of random generators: the global generators of PyTorch, NumPy and Python, and those of programs."""

from __future__ import annotations

import _random
import ctypes
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Kinds of random generators that programs hold."""
RandomState = dict[str, Any]
"""NumPy arrays and JSON values, by name."""
_TWISTER_BYTES = 4 * (624 + 1)
"""Size of a Mersenne Twister's words and position."""


def global_generators() -> list[Any]:
    """Return the global generators of PyTorch, NumPy and Python."""
    return [torch.default_generator, np.random.mtrand._rand, random._inst]


def quick_global_generators() -> list[Any]:
    """Return the global generators in a form whose states are read in a fraction of the time.

    The states do not include the second number of a pair of Gaussians, which NumPy keeps for the next call.
    """
    of_torch, _, python = global_generators()
    quick = _QuickPython(python)
    return [of_torch, _QuickNumpy(), quick if quick.is_possible() else python]


def states_of(generators: Iterable[Any]) -> list[Any]:
    """Return the state of each generator, for `set_states`."""
    return [_state_of(each) for each in generators]


def set_states(generators: Iterable[Any], states: Iterable[Any]) -> None:
    """Set each generator to a state."""
    for generator, state in zip(generators, states, strict=True):
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        elif isinstance(generator, random.Random):
            generator.setstate(state)
        else:
            generator.set_state(state)


def same_state(a: Any, b: Any) -> bool:
    """Return whether nothing was drawn between two states of a generator, or of several."""
    if a is b:
        return True
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, dict):
        return all(same_state(value, b[name]) for name, value in a.items())
    if isinstance(a, (list, tuple)) and not (a and isinstance(a[0], (int, bytes))):
        return all(map(same_state, a, b))
    return bool(a == b)


def random_state(device: torch.device | None = None) -> RandomState:
    """Return the states of all generators, including a CUDA device's generator if a device is given."""
    python = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - the state of legacy code
    state: RandomState = {
        "torch": torch.get_rng_state().numpy(),
        "numpy": np.asarray(keys),
        "numpy rest": [name, *rest],
        "python": [python[0], list(python[1]), python[2]],
    }
    if device is not None and device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy()
    return state


def set_random_state(state: RandomState, device: torch.device | None = None) -> None:
    """Set all generators to the states that `random_state` returned."""
    torch.set_rng_state(torch.from_numpy(state["torch"]))
    name, *rest = state["numpy rest"]
    np.random.set_state((name, state["numpy"], *rest))  # noqa: NPY002
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if device is not None and device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]), device)


class SimulationRng:
    """Lets simulations draw the random numbers that the real forward passes will draw.

    A simulation begins with the state after the previous simulation, and the first one with the current
    state. This is correct if only forward draws; otherwise predictions are wrong. The program never observes
    that a simulation draws.
    """

    def __init__(self) -> None:
        self.next: Sequence[Any] | None = None
        """States at the start of the next simulation; None for the current states."""
        self.drew_on_host = False
        """Whether the last simulation drew from NumPy or Python."""
        self.draws_all = False
        """Whether to make also draws that give no ids, such as dropout, because other draws follow them."""
        self.foresees_draws = True
        """Whether rows that depend on draws from the global generators are predicted."""
        self.follows_torch = True
        """Whether simulations may draw from PyTorch's generator. They may not if workers in other threads
        draw from it concurrently."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Return the context of one simulation."""
        generators = global_generators()[0 if self.follows_torch else 1 :]
        before = states_of(generators)
        start = self.next or before
        if self.next is not None:
            set_states(generators, start)
        try:
            yield
        finally:
            after = states_of(generators)
            self.drew_on_host = not same_state(after[-2:], start[-2:])
            if not same_state(after, start):
                self.next = after
            if self.next is not None:
                set_states(generators, before)


class _QuickNumpy:
    """NumPy's present global generator; the state of a Mersenne Twister is read from memory."""

    def get_state(self) -> tuple[Any, Any]:
        """Return the source of random bits and its state."""
        bits = np.random.mtrand._rand._bit_generator
        if type(bits) is not np.random.MT19937:
            return bits, bits.state
        return bits, ctypes.string_at(bits.ctypes.state_address, _TWISTER_BYTES)

    def set_state(self, state: tuple[Any, Any]) -> None:
        """Set the source of random bits, which `state` names, to its state."""
        bits, values = state
        if type(bits) is not np.random.MT19937:
            bits.state = values
        else:
            ctypes.memmove(bits.ctypes.state_address, values, _TWISTER_BYTES)


class _QuickPython:
    """A generator of Python, whose state is read from the memory of the object."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator  # Its memory is valid as long as it exists.
        self._address = id(generator) + object.__basicsize__

    def is_possible(self) -> bool:
        """Return whether this interpreter stores the state where it is read: position, and then the words."""
        *words, position = self._generator.getstate()[1]
        expected = array("I", [position, *words]).tobytes()
        fits = _random.Random.__basicsize__ - object.__basicsize__ >= len(expected) == _TWISTER_BYTES
        return fits and self.get_state()[0] == expected

    def get_state(self) -> tuple[bytes, float | None]:
        return ctypes.string_at(self._address, _TWISTER_BYTES), self._generator.gauss_next  # type: ignore[attr-defined]

    def set_state(self, state: tuple[bytes, float | None]) -> None:
        ctypes.memmove(self._address, state[0], _TWISTER_BYTES)
        self._generator.gauss_next = state[1]  # type: ignore[attr-defined]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, (torch.Generator, _QuickNumpy, _QuickPython)):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state(legacy=False)
