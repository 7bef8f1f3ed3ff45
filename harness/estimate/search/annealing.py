"""Simulated annealing: the choice of one unit after the other is drawn again, at a falling temperature."""

import numpy as np

from adabench.harness.estimate.search.local_search import improved, limited_memory
from adabench.harness.estimate.search.problem import Choices, Problem, Solution

_WARM, _COLD = 0.3, 1e-5
"""Temperatures, as fractions of the value."""
_PRICE = 2.0
"""Penalty, as a multiple of the value, of memory that is twice its limit."""


def anneal(problem: Problem, start: Choices, effort: float, seed: int) -> Solution:
    """Draw the choice of one unit after the other, with probabilities ∝ exp(-value / temperature).

    Each draw leaves the choices of all other units unchanged. These are heat-bath dynamics (S. Geman,
    D. Geman: *Stochastic Relaxation, Gibbs Distributions, and the Bayesian Restoration of Images*, 1984).
    Memory above a limit is penalised. In the end, the best choices that were found and the last choices are
    improved by changes of single units.
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
