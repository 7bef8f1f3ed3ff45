"""Solvers behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from adabench.harness.estimate.search.annealing import anneal
from adabench.harness.estimate.search.differentiable import descend
from adabench.harness.estimate.search.exact import solve_exactly
from adabench.harness.estimate.search.lagrangian import excess, improved, multipliers_of
from adabench.harness.estimate.search.problem import Choices, Infeasible, Problem, Solution

__all__ = ["SOLVERS", "brute_force", "solve"]

Solver = Callable[[Problem, Choices, float, int], Solution]


def _automatically(problem: Problem, start: Choices, effort: float, seed: int) -> Solution:
    """Exactly, and where that proves nothing by annealing from what it has found."""
    exact = solve_exactly(problem, start, effort, seed)
    if exact.proved:
        return exact
    annealed = anneal(problem, exact.choices, effort, seed)
    return replace(annealed if annealed.value < exact.value else exact, bound=exact.bound)


SOLVERS: dict[str, Solver] = {
    "auto": _automatically,
    "exact": solve_exactly,
    "annealing": anneal,
    "differentiable": descend,
}


def solve(problem: Problem, solver: str = "auto", effort: float = 1.0, seed: int = 0) -> Solution:
    """The choices with the least value that keep the limits, or what a solver takes for them.

    Equal arguments give equal solutions.

    Parameters
    ----------
    problem : Problem
    solver : str
        One of `SOLVERS`.
    effort : float
        1 is about a second of a core for large problems.
    seed : int
        Of what the solver draws.

    Raises
    ------
    Infeasible
        If no choices are found that keep the limits.
    """
    smaller, kept = problem.without_dominated()
    start = _start(smaller, effort, seed)
    found = SOLVERS[solver](smaller, start, effort, seed)
    bound = found.bound
    if not np.isfinite(bound):
        bound = min(found.value, float(multipliers_of(smaller).bounds[0]))
    choices = np.array([own[choice] for own, choice in zip(kept, found.choices, strict=True)])
    return Solution(choices, problem.value(choices), bound, found.solver)


def _start(problem: Problem, effort: float, seed: int) -> Choices:
    """Choices that keep the limits.

    What has most of its limit decides: the least of that is the problem whose loads are the parts of the
    limits, and which has none.
    """
    limited = np.isfinite(problem.limits)
    first = problem.there(problem.loads.max(axis=2).argmin(axis=1))
    if problem.fits(first):
        return first
    first = improved(problem, first)
    if excess(problem, problem.kept(first)) == 0:
        return first
    parts = problem.memory[:, :, limited] / np.maximum(problem.limits[limited], 1e-300)
    tight = Problem.of([own[:count] for own, count in zip(parts, problem.counts, strict=True)])
    least = _automatically(tight, tight.loads.max(axis=2).argmin(axis=1), effort, seed)
    if not problem.fits(least.choices):
        raise Infeasible(least.value, least.proved)
    return least.choices


def brute_force(problem: Problem) -> Solution | None:
    """The best of all combinations, by trying each; None if none keeps the limits.

    Parameters
    ----------
    problem : Problem
        With few combinations.
    """
    best: Choices | None = None
    for numbers in np.ndindex(*problem.counts.tolist()):
        choices = np.array(numbers)
        if problem.fits(choices) and (best is None or problem.value(choices) < problem.value(best)):
            best = choices
    if best is None:
        return None
    return Solution(best, problem.value(best), problem.value(best), "brute force")
