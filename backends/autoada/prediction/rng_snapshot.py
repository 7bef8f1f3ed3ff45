"""Snapshots of NumPy's and Python's global generators: simulations draw from copies, real passes repeat."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np


class RngSnapshot(NamedTuple):
    """State of both generators."""

    numpy: dict[str, Any]
    python: Any

    @classmethod
    def now(cls) -> RngSnapshot:
        """State of the global generators now."""
        return cls(np.random.get_state(legacy=False), random.getstate())  # noqa: NPY002

    def set(self) -> None:
        """Set the global generators to this state."""
        np.random.set_state(self.numpy)  # noqa: NPY002
        random.setstate(self.python)

    def same_as(self, other: RngSnapshot) -> bool:
        """Whether nothing was drawn between the two."""
        mine, others = self.numpy, other.numpy
        return bool(
            self.python == other.python
            and mine["has_gauss"] == others["has_gauss"]
            and mine["gauss"] == others["gauss"]
            and mine["state"].keys() == others["state"].keys()
            and all(np.array_equal(value, others["state"][name]) for name, value in mine["state"].items())
        )


class SimulationRng:
    """Keeps simulations from drawing out of the global generators.

    Attributes
    ----------
    start : State or None
        State before the last simulation; None if it drew nothing.
    """

    def __init__(self) -> None:
        self.start: RngSnapshot | None = None
        self._next: RngSnapshot | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Context of one simulation."""
        before = RngSnapshot.now()
        start = self._next or before
        if self._next is not None:
            start.set()
        try:
            yield
        finally:
            after = RngSnapshot.now()
            drawn = not after.same_as(start)
            self.start = start if drawn else None
            if drawn:
                self._next = after
            if drawn or self._next is not None:
                before.set()


class ReplayRng(AbstractContextManager[None]):
    """Surrounds the real forward passes of a batch: they draw what its simulation drew."""

    def __init__(self, start: RngSnapshot) -> None:
        self._next = start
        self._outside = start

    def __enter__(self) -> None:
        self._outside = RngSnapshot.now()
        self._next.set()

    def __exit__(self, *error: object) -> None:
        self._next = RngSnapshot.now()
        self._outside.set()
