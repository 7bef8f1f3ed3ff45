"""Solvers behind one interface."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from adabench.harness.estimate.search.annealing import anneal
from adabench.harness.estimate.search.differentiable import descend
from adabench.harness.estimate.search.exact import lower_bound, solve_exactly
from adabench.harness.estimate.search.local_search import improved, limited_memory
from adabench.harness.estimate.search.problem import Choices, Infeasible, Problem, Solution

Solver = Callable[[Problem, Choices, float, int], Solution]
"""Takes a problem, choices that keep the limits, the effort and the seed of `solve`."""


def _automatically(problem: Problem, start: Choices, effort: float, seed: int) -> Solution:
    """Solve exactly, and, where that proves nothing, anneal from the solution."""
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
    """Find choices that keep the limits and have the least value, or nearly so.

    Equal arguments give equal solutions.

    Parameters
    ----------
    problem : Problem
        Problem to solve.
    solver : str
        One of `SOLVERS`.
    effort : float
        Solver effort: 1 takes about one second for large problems.
    seed : int
        Seed for the draws of the solver.

    Raises
    ------
    Infeasible
        If no choices are found that keep the limits.
    """
    smaller, kept = problem.without_dominated()
    found = SOLVERS[solver](smaller, _start(smaller, effort, seed), effort, seed)
    bound = found.bound if np.isfinite(found.bound) else min(found.value, lower_bound(smaller))
    choices = np.array([own[choice] for own, choice in zip(kept, found.choices, strict=True)])
    return Solution(choices, problem.value(choices), bound, found.solver)


def _start(problem: Problem, effort: float, seed: int) -> Choices:
    """Choices that keep the limits.

    If improvement finds no such choices, memory becomes the objective, and no limit remains. Each load is
    then the memory that the choices take, as a fraction of its limit.
    """
    first = problem.cheapest()
    for candidate in (first, improved(problem, first)):
        if problem.fits(candidate):
            return candidate
    parts = limited_memory(problem)[0]
    tight = Problem.of([own[:count] for own, count in zip(parts, problem.counts, strict=True)])
    least = _automatically(tight, tight.cheapest(), effort, seed)
    if not problem.fits(least.choices):
        raise Infeasible(least.value, least.proved)
    return least.choices
