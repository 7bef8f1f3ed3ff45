"""What is minimised: the largest of loads that choices add to, with memory that is limited per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Choices", "Floats", "Infeasible", "Problem", "Solution"]

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Choices: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_ROUNDING = 1e-9
"""Relative rounding error of sums."""
_PROOF = 1e-6
"""Relative difference of a value and its bound that counts as none: the tolerance of linear programs."""


class Infeasible(ValueError):
    """No choices keep the limits.

    Attributes
    ----------
    factor : float
        So many times the limits some choices keep.
    proved : bool
        Whether none keep less than that.
    """

    def __init__(self, factor: float, proved: bool) -> None:
        super().__init__(f"no choices found that keep the limits; some keep {factor:.6g} times as much")
        self.factor = factor
        self.proved = proved


@dataclass(frozen=True)
class Problem:
    """One choice for each of some units, each of which adds to loads and takes memory.

    Attributes
    ----------
    loads : float array
        Units × choices × loads: what a choice adds. Where a unit has fewer choices than others, its first one
        is repeated.
    base : float array
        Of each load, without any unit.
    memory : float array
        Units × choices × nodes.
    limits : float array
        Of each node's memory; infinite where there is none.
    counts : int array
        Of each unit's choices.
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
            Choices × loads, for each unit.
        memory : sequence of float array, optional
            Choices × nodes, for each unit; nothing takes any without it.
        base, limits : float array, optional
            As of the class; 0, and no limits.

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
        """How many there are."""
        return len(self.counts)

    def existing(self, choices: Choices) -> Choices:
        """Equal choices by the numbers that the units have: padding repeats the first choice."""
        return np.where(choices < self.counts, choices, 0)

    def cheapest(self) -> Choices:
        """Each unit's choice whose largest load is least, whatever memory it takes."""
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
        """The limits, and what sums may be rounded by."""
        return self.limits * (1 + _ROUNDING)

    def without_dominated(self) -> tuple[Problem, list[Choices]]:
        """The problem without choices that another one of the unit is as good as in everything.

        Returns
        -------
        Problem, list of int array
            And for each unit the numbers that its choices had.
        """
        limited = np.isfinite(self.limits)
        both = np.concatenate([self.loads, self.memory[:, :, limited]], axis=2)
        kept = []
        for unit, count in enumerate(self.counts):
            rows = both[unit, :count]
            order = np.lexsort((np.arange(count), rows.sum(axis=1)))  # who dominates has the lesser sum
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
    """What a solver found.

    Attributes
    ----------
    choices : int array
        One for each unit.
    value : float
        The largest load with them.
    bound : float
        No choices have a lesser value.
    solver : str
        Who found it.
    """

    choices: Choices
    value: float
    bound: float
    solver: str

    @property
    def proved(self) -> bool:
        """Whether there is no better one."""
        return self.value <= self.bound + _PROOF * abs(self.bound) + 1e-300

    @property
    def gap(self) -> float:
        """The most that it may be too large, as a part of the bound."""
        if self.proved:
            return 0.0
        return (self.value - self.bound) / abs(self.bound) if self.bound else float("inf")
