"""The problem that solvers share: minimise the largest load, with limited memory per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Choices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_ROUNDING = 1e-9
"""Relative rounding error of sums."""
_PROOF = 1e-6
"""Relative difference of a value and its bound that counts as none: the tolerance of linear programs."""


class Infeasible(ValueError):
    """No choices keep the limits.

    Attributes
    ----------
    factor : float
        Factor by which the limits would have to be larger for some known choices.
    proved : bool
        Whether every choice needs at least this factor.
    """

    def __init__(self, factor: float, proved: bool) -> None:
        super().__init__(f"no choices found that keep the limits; some keep {factor:.6g} times as much")
        self.factor = factor
        self.proved = proved


@dataclass(frozen=True)
class Problem:
    """One choice is made for each unit; choices add to loads and take memory.

    Attributes
    ----------
    loads : float array
        Load added by each choice: units × choices × loads. A unit with fewer choices than others repeats its
        first one.
    base : float array
        Each load without any unit.
    memory : float array
        Memory of each choice: units × choices × nodes.
    limits : float array
        Limit of each node's memory; infinity where there is none.
    counts : int array
        Number of choices of each unit.
    """

    loads: Floats
    base: Floats
    memory: Floats
    limits: Floats
    counts: Choices

    @classmethod
    def of(
        cls,
        loads: Sequence[Floats],
        memory: Sequence[Floats] | None = None,
        base: Floats | None = None,
        limits: Floats | None = None,
    ) -> Problem:
        """A problem of units with any numbers of choices.

        Parameters
        ----------
        loads : sequence of float array
            Loads of each unit: choices × loads.
        memory : sequence of float array, optional
            Memory of each unit: choices × nodes. Without it, no unit takes memory.
        base, limits : float array, optional
            Values of these attributes. By default the base is 0, and there are no limits.

        Raises
        ------
        ValueError
            If a unit has no choice, or shapes do not fit.
        """
        if not loads:
            raise ValueError("a problem without units")
        memory = [np.zeros((len(one), 1)) for one in loads] if memory is None else memory
        counts = np.array([len(one) for one in loads], dtype=np.int64)
        if counts.min() == 0:
            raise ValueError(f"unit {int(counts.argmin())} has no choice")
        most = int(counts.max())

        def padded(rows: Sequence[Floats]) -> Floats:
            return np.stack([np.concatenate([one, one[:1].repeat(most - len(one), 0)]) for one in rows])

        together, kept = padded(loads), padded(memory)
        base = np.zeros(together.shape[2]) if base is None else base
        limits = np.full(kept.shape[2], np.inf) if limits is None else limits
        if base.shape != together.shape[2:] or limits.shape != kept.shape[2:]:
            raise ValueError(f"{base.size} bases of {together.shape[2]} loads, {limits.size} limits")
        return cls(together, base, kept, limits, counts)

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.counts)

    def existing(self, choices: Choices) -> Choices:
        """Equal choices by the numbers that the units have: padding repeats the first choice."""
        return np.where(choices < self.counts, choices, 0)

    def cheapest(self) -> Choices:
        """Return each unit's choice with the smallest largest load, regardless of memory."""
        return self.existing(self.loads.max(axis=2).argmin(axis=1))

    def totals(self, choices: Choices) -> Floats:
        """Each load, with these choices."""
        return np.asarray(self.base + self.loads[np.arange(self.units), choices].sum(axis=0))

    def value(self, choices: Choices) -> float:
        """The largest load."""
        return float(self.totals(choices).max())

    def kept(self, choices: Choices) -> Floats:
        """Each node's memory."""
        return np.asarray(self.memory[np.arange(self.units), choices].sum(axis=0))

    def fits(self, choices: Choices) -> bool:
        """Whether all limits are kept."""
        return bool((self.kept(choices) <= self.allowed).all())

    @property
    def allowed(self) -> Floats:
        """The limits, with a tolerance for rounding errors of sums."""
        return self.limits * (1 + _ROUNDING)

    def without_dominated(self) -> tuple[Problem, list[Choices]]:
        """The problem without choices that are nowhere better than another choice of the unit.

        Returns
        -------
        Problem, list of int array
            The second item has, for each unit, the numbers that its choices had.
        """
        limited = np.isfinite(self.limits)
        both = np.concatenate([self.loads, self.memory[:, :, limited]], axis=2)
        kept = []
        for unit, count in enumerate(self.counts):
            rows = both[unit, :count]
            order = np.lexsort(
                (np.arange(count), rows.sum(axis=1))
            )  # a choice that dominates another has a smaller sum
            left: list[int] = []
            for one in order:
                if not left or not (rows[left] <= rows[one]).all(axis=1).any():
                    left.append(int(one))
            kept.append(np.array(sorted(left), dtype=np.int64))
        smaller = Problem.of(
            [self.loads[unit, own] for unit, own in enumerate(kept)],
            [self.memory[unit, own] for unit, own in enumerate(kept)],
            self.base,
            self.limits,
        )
        return smaller, kept


@dataclass(frozen=True)
class Solution:
    """A solution.

    Attributes
    ----------
    choices : int array
        One choice for each unit.
    value : float
        The largest load.
    bound : float
        A value that no choices undercut.
    solver : str
        Name of the solver.
    """

    choices: Choices
    value: float
    bound: float
    solver: str

    @property
    def proved(self) -> bool:
        """Whether no choices are better."""
        return self.value <= self.bound + _PROOF * abs(self.bound) + 1e-300

    @property
    def gap(self) -> float:
        """The largest possible excess of the value, as a fraction of the bound."""
        if self.proved:
            return 0.0
        return (self.value - self.bound) / abs(self.bound) if self.bound else float("inf")
