"""Annealed Monte Carlo: units are drawn anew, one after the other, at a falling temperature."""

from __future__ import annotations

import numpy as np

from adabench.harness.estimate.search.local_search import improved, limited_memory
from adabench.harness.estimate.search.problem import Choices, Problem, Solution

__all__ = ["anneal"]

_WARM, _COLD = 0.3, 1e-5
"""Temperatures, as parts of the value."""
_PRICE = 2.0
"""Of memory that is above a limit by all of it, in values."""


def anneal(problem: Problem, start: Choices, effort: float, seed: int) -> Solution:
    """Draw each unit's choice with probability proportional to exp(-value / temperature), all else as it is.

    Heat-bath dynamics (S. Geman, D. Geman: *Stochastic Relaxation, Gibbs Distributions, and the Bayesian
    Restoration of Images*, 1984). What is above a limit costs. The best choices that were met, and the last
    ones, are improved by single changes in the end.

    Parameters
    ----------
    problem : Problem
    start : int array
        That keeps the limits.
    effort : float
        1 is about a second of a core for large problems.
    seed : int
        Of what is drawn.
    """
    random = np.random.default_rng(seed)
    sweeps = max(4, int(effort * 30_000 / problem.units))
    sweeps = min(sweeps, int(1000 * max(effort, 0.1)))
    best = improved(problem, start)
    value = problem.value(best)
    scale = max(value, 1e-300)
    parts, allowed = limited_memory(problem)
    rows = np.arange(problem.units)
    choices, totals, kept = best.copy(), problem.totals(best), parts[rows, best].sum(axis=0)
    for temperature in scale * np.geomspace(_WARM, _COLD, sweeps):
        noise = temperature * random.gumbel(size=problem.loads.shape[:2])
        for unit in random.permutation(problem.units):
            own = choices[unit]
            loads = totals - problem.loads[unit, own] + problem.loads[unit]
            energy = loads.max(axis=1)
            memory = kept - parts[unit, own] + parts[unit]
            energy += _PRICE * scale * np.maximum(memory - allowed, 0.0).sum(axis=1)
            count = problem.counts[unit]
            drawn = int((noise[unit, :count] - energy[:count]).argmax())  # the Gumbel-max trick
            if drawn != own:
                choices[unit] = drawn
                totals, kept = loads[drawn], memory[drawn]
        totals, kept = problem.totals(choices), parts[rows, choices].sum(axis=0)
        if totals.max() < value and problem.fits(choices):
            best, value = choices.copy(), problem.value(choices)
    for candidate in (improved(problem, choices), improved(problem, best)):
        if problem.fits(candidate) and problem.value(candidate) < value:
            best, value = candidate, problem.value(candidate)
    return Solution(best, value, -np.inf, "annealing")
