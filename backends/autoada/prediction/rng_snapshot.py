"""Snapshots of the global generators of PyTorch, NumPy and Python, for draws in simulations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class RngSnapshot(NamedTuple):
    """State of the generators; PyTorch's state is None if it is not followed."""

    torch: Tensor | None
    numpy: dict[str, Any]
    python: Any

    @classmethod
    def now(cls, follow_torch: bool = True) -> RngSnapshot:
        """Return the current state of the global generators."""
        of_torch = torch.get_rng_state() if follow_torch else None
        return cls(of_torch, np.random.get_state(legacy=False), random.getstate())  # noqa: NPY002

    def set(self) -> None:
        """Set the global generators to this state."""
        if self.torch is not None:
            torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)  # noqa: NPY002
        random.setstate(self.python)

    def same_as(self, other: RngSnapshot) -> bool:
        """Return whether nothing was drawn between the two states."""
        if self.torch is not None and other.torch is not None and not torch.equal(self.torch, other.torch):
            return False
        return self.same_on_host(other)

    def same_on_host(self, other: RngSnapshot) -> bool:
        """Return whether nothing was drawn from NumPy and Python between the two states."""
        mine, others = self.numpy, other.numpy
        return bool(
            self.python == other.python
            and mine["has_gauss"] == others["has_gauss"]
            and mine["gauss"] == others["gauss"]
            and mine["state"].keys() == others["state"].keys()
            and all(np.array_equal(value, others["state"][name]) for name, value in mine["state"].items())
        )


GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Kinds of random generators that programs hold."""


def generator_state(generator: Any) -> Any:
    """Return the state of one of the `GENERATORS`, for `set_generator_state`."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of one of the `GENERATORS`."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


class SimulationRng:
    """Lets simulations draw the random numbers that the real forward passes will draw.

    A simulation begins with the state after the previous simulation, and the first one with the current
    state. This is correct if only forward draws; otherwise predictions are wrong. The program never observes
    that a simulation draws.

    Attributes
    ----------
    next : RngSnapshot or None
        State at the start of the next simulation; None for the current state.
    drew_on_host : bool
        Whether the last simulation drew from NumPy or Python.
    follows_torch : bool
        Whether simulations may draw from PyTorch's generator. They may not if workers in other threads draw
        from it concurrently.
    """

    def __init__(self) -> None:
        self.next: RngSnapshot | None = None
        self.drew_on_host = False
        self.follows_torch = True

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Return the context of one simulation."""
        before = RngSnapshot.now(self.follows_torch)
        start = self.next or before
        if self.next is not None:
            start.set()
        try:
            yield
        finally:
            after = RngSnapshot.now(self.follows_torch)
            self.drew_on_host = not after.same_on_host(start)
            drew = not after.same_as(start)
            if drew:
                self.next = after
            if drew or self.next is not None:
                before.set()
