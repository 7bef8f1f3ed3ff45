"""The exact solver: a mixed-integer linear program, solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adabench.harness.estimate.search.local_search import improved, limited_memory
from adabench.harness.estimate.search.problem import Choices, Floats, Problem, Solution

_ENTRIES, _NODES = 16_000, 1000
"""Entries of the program's matrix, beyond the relaxation's own choices, and branches, at effort 1."""
_TOLERANCE = 1e-7


def solve_exactly(problem: Problem, start: Choices, effort: float, seed: int) -> Solution:
    """Choose by a mixed-integer linear program with one binary variable for each choice of each unit.

    The linear relaxation is solved first. It gives a lower bound of the value. For each choice, it also gives
    the least increase of the value if the choice is made. A choice is left out if the value would then exceed
    the best known value. If more choices remain than `effort` allows, only those with the smallest increase
    are considered. The proved bound is then the relaxation's bound.
    """
    program = _Program.of(problem)
    relaxed = program.relaxed()
    best = _better(problem, start, improved(problem, start))
    best = _better(problem, best, improved(problem, program.likeliest(relaxed.x)))
    value = problem.value(best)
    bound = program.scale * relaxed.fun
    if value <= bound * (1 + _TOLERANCE):
        return Solution(best, value, bound, "exact")
    rise = program.scale * np.maximum(relaxed.lower.marginals[:-1], 0.0)
    useful = np.flatnonzero((bound + rise <= value * (1 + _TOLERANCE)) & (relaxed.x[:-1] <= _TOLERANCE))
    most = max(64, int(effort * _ENTRIES / len(program.at_most_values)))
    considered = useful[np.argsort(rise[useful], kind="stable")[:most]]
    decided = program.decided(considered, relaxed.x, int(max(effort * _NODES, 10)))
    if decided.x is not None:
        best = _better(problem, best, improved(problem, program.likeliest(decided.x)))
    value = problem.value(best)
    if len(useful) <= most and decided.mip_dual_bound is not None:
        bound = max(bound, program.scale * decided.mip_dual_bound)
    return Solution(best, value, min(bound, value), "exact")


def lower_bound(problem: Problem) -> float:
    """Return the minimum of the linear relaxation, a lower bound for all choices."""
    program = _Program.of(problem)
    return program.scale * float(program.relaxed().fun)


def _better(problem: Problem, one: Choices, other: Choices) -> Choices:
    return other if problem.fits(other) and problem.value(other) < problem.value(one) else one


@dataclass(frozen=True)
class _Program:
    """Minimise `t`, which is at least each load, with one choice per unit; all loads in units of `scale`.

    Attributes
    ----------
    units : int array
        Unit of each variable; the last variable, `t`, has none.
    numbers : int array
        Number of each variable's choice.
    at_most, at_most_values : arrays
        Rows of ``at_most @ x <= at_most_values``: loads and limited memory.
    one_each : sparse array
        Rows of ``one_each @ x == 1``.
    scale : float
        Unit of all loads.
    """

    units: Choices
    numbers: Choices
    at_most: Any
    at_most_values: Floats
    one_each: Any
    scale: float

    @classmethod
    def of(cls, problem: Problem) -> _Program:
        from scipy import sparse

        units, numbers = np.nonzero(np.arange(problem.loads.shape[1]) < problem.counts[:, None])
        scale = max(abs(problem.value(problem.cheapest())), 1e-300)
        memory, allowed = limited_memory(problem)
        loads = np.hstack([problem.loads[units, numbers].T / scale, -np.ones((problem.base.size, 1))])
        kept = np.hstack([memory[units, numbers].T, np.zeros((allowed.size, 1))])
        count = len(units)
        one_each = sparse.csr_array(
            (np.ones(count), (units, np.arange(count))), shape=(problem.units, count + 1)
        )
        values = np.concatenate([-problem.base / scale, allowed])
        return cls(units, numbers, sparse.csr_array(np.vstack([loads, kept])), values, one_each, scale)

    def relaxed(self) -> Any:
        """Return the solution of the linear relaxation, where choices may be mixed."""
        from scipy.optimize import linprog

        count = len(self.units)
        found = linprog(
            np.append(np.zeros(count), 1.0),
            A_ub=self.at_most,
            b_ub=self.at_most_values,
            A_eq=self.one_each,
            b_eq=np.ones(self.one_each.shape[0]),
            bounds=[(0.0, None)] * count + [(None, None)],
            method="highs",
        )
        if found.x is None:
            raise RuntimeError(f"HiGHS has not solved the linear relaxation: {found.message}")
        return found

    def decided(self, considered: Choices, relaxed: Floats, nodes: int) -> Any:
        """Return the best solution with some choices and the choices that the relaxation prefers."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        count = len(self.units)
        allowed = np.zeros(count)
        allowed[considered] = 1.0
        allowed[relaxed[:-1] > _TOLERANCE] = 1.0
        return milp(
            np.append(np.zeros(count), 1.0),
            integrality=np.append(np.ones(count), 0.0),
            bounds=Bounds(np.append(np.zeros(count), -np.inf), np.append(allowed, np.inf)),
            constraints=[
                LinearConstraint(self.at_most, -np.inf, self.at_most_values),
                LinearConstraint(self.one_each, 1.0, 1.0),
            ],
            options={"node_limit": nodes, "mip_rel_gap": _TOLERANCE},
        )

    def likeliest(self, x: Floats) -> Choices:
        """Return each unit's choice with the greatest share."""
        shares = np.full((self.one_each.shape[0], int(self.numbers.max()) + 1), -1.0)
        shares[self.units, self.numbers] = x[:-1]
        return np.asarray(shares.argmax(axis=1))
