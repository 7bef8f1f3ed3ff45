"""Dynamic programming over units with bounds: exact where few partial choices can still be the best ones."""

from __future__ import annotations

import numpy as np

from adabench.harness.estimate.search.lagrangian import Multipliers, improved, multipliers_of
from adabench.harness.estimate.search.problem import Choices, Floats, Problem, Solution

__all__ = ["solve_exactly"]

_DOMINANCE, _WIDTH = 1500, 12
"""States, and numbers in each, up to which it is looked for any that is as good as another in everything; in
more numbers hardly any is.
"""
_FEWEST, _MOST = 64, 200_000


def solve_exactly(problem: Problem, start: Choices, effort: float, seed: int) -> Solution:
    """One unit after the other; a state is what the choices so far add up to.

    A state is given up if another one is as good in every load and in all memory, or if the least that it
    can still lead to, by several sets of Lagrange multipliers, is no better than what is known. So costs that
    separate, with a limit of memory, are a knapsack that is solved as one. If more states are left than
    effort allows, those with the highest bounds go, and the least of these bounds is what is proved.

    Parameters
    ----------
    problem : Problem
    start : int array
        That keeps the limits.
    effort : float
        1 is about a second of a core for large problems.
    seed : int
        Not needed: nothing is drawn.
    """
    found = multipliers_of(problem)
    best = start
    for candidate in (improved(problem, start), improved(problem, found.best)):
        if problem.fits(candidate) and problem.value(candidate) < problem.value(best):
            best = candidate
    width = problem.base.size + problem.limits.size
    per_state = problem.units * problem.loads.shape[1] * width
    states = int(np.clip(effort * 2e8 / per_state, _FEWEST, _MOST))
    return _programme(problem, found, best, states)


def _programme(problem: Problem, found: Multipliers, best: Choices, most: int) -> Solution:
    # What differs most comes first: bounds of what follows are then narrow.
    spread = problem.loads.max(axis=1) - problem.loads.min(axis=1)
    order = np.argsort(-(spread @ found.weights[0]), kind="stable")
    loads, memory = problem.loads[order], problem.memory[order]
    counts = problem.counts[order]
    limited = np.isfinite(problem.limits)
    memory, allowed = memory[:, :, limited], problem.allowed[limited]
    prices = found.prices[:, limited]
    least = np.einsum("ukr,pr->puk", loads, found.weights) + np.einsum("ukn,pn->puk", memory, prices)
    rest = _from_behind(least.min(axis=2).T).T  # sets × units + 1
    rest_loads, rest_memory = _from_behind(loads.min(axis=1)), _from_behind(memory.min(axis=1))
    owed = prices @ np.where(np.isfinite(problem.limits[limited]), problem.limits[limited], 0.0)
    value = problem.value(best)
    proved = np.inf  # the least bound of what was given up for want of room
    totals, kept = problem.base[None, :], np.zeros((1, allowed.size))
    path: list[tuple[Choices, Choices]] = []
    for unit in range(problem.units):
        count = int(counts[unit])
        parents = np.repeat(np.arange(len(totals)), count)
        picked = np.tile(np.arange(count), len(totals))
        totals = totals[parents] + loads[unit, picked]
        kept = kept[parents] + memory[unit, picked]
        bound = (totals @ found.weights.T + kept @ prices.T + rest[:, unit + 1] - owed).max(axis=1)
        bound = np.maximum(bound, (totals + rest_loads[unit + 1]).max(axis=1))
        alive = bound < value * (1 - 1e-12) if value > 0 else bound < value
        alive &= (kept + rest_memory[unit + 1] <= allowed).all(axis=1)
        left = np.flatnonzero(alive)
        left = left[np.argsort(bound[left], kind="stable")]
        left = left[_undominated(totals[left], kept[left])]
        if len(left) > most:
            proved = min(proved, float(bound[left[most]]))
            left = left[:most]
        path.append((parents[left], picked[left]))
        totals, kept = totals[left], kept[left]
        if not len(left):
            break
    if len(totals):
        state = int(totals.max(axis=1).argmin())
        choices = best.copy()
        for unit in range(problem.units - 1, -1, -1):
            parents, picked = path[unit]
            choices[order[unit]] = picked[state]
            state = int(parents[state])
        if problem.value(choices) < value:
            best, value = choices, problem.value(choices)
    bound = min(value, max(proved, float(found.bounds[0])))
    return Solution(best, value, bound, "exact")


def _from_behind(values: Floats) -> Floats:
    """Sums of what follows, from each on; the last is 0."""
    sums = np.zeros((len(values) + 1, *values.shape[1:]))
    sums[:-1] = values[::-1].cumsum(axis=0)[::-1]
    return sums


def _undominated(totals: Floats, kept: Floats) -> Choices:
    """Of states in the order of their bounds, the numbers of those that no other one is as good as."""
    both = np.concatenate([totals, kept], axis=1)
    if both.shape[1] <= 2:
        return _frontier(both)
    if len(both) > _DOMINANCE or both.shape[1] > _WIDTH:
        return np.arange(len(both))
    left: list[int] = []
    for one in range(len(both)):
        if not left or not (both[left] <= both[one]).all(axis=1).any():
            left.append(one)
    return np.array(left, dtype=np.int64)


def _frontier(both: Floats) -> Choices:
    """The same, of one load and at most one node's memory."""
    if not len(both):
        return np.arange(0)
    last = both[:, 1] if both.shape[1] == 2 else np.zeros(len(both))
    order = np.lexsort((last, both[:, 0]))
    ahead = np.concatenate([[np.inf], np.minimum.accumulate(last[order])[:-1]])
    return np.sort(order[last[order] < ahead])
