"""Local search, which all solvers use: choices are improved by changes of single units."""

import numpy as np

from adabench.harness.estimate.search.problem import Choices, Floats, Problem

_LITTLE, _MUCH, _ROUNDING = 1e-4, 1e3, 1e-12


def improved(problem: Problem, choices: Choices, sweeps: int = 12) -> Choices:
    """Change the choice of one unit after the other if this is better, in at most `sweeps` sweeps.

    A change is better if memory exceeds its limits by less or, if this is equal, if the value is lower. The
    mean of all loads is added to the value with a small weight, so that smaller loads also decrease.
    """
    choices = choices.copy()
    scale = max(problem.value(choices), 1e-300)
    memory, allowed = limited_memory(problem)
    rows = np.arange(problem.units)
    for _ in range(sweeps):
        changed = False
        # Each sweep recomputes the sums, so that rounding errors do not add up.
        totals, kept = problem.totals(choices), memory[rows, choices].sum(axis=0)
        for unit in range(problem.units):
            own = choices[unit]
            loads = totals - problem.loads[unit, own] + problem.loads[unit]
            taken = kept - memory[unit, own] + memory[unit]
            score = loads.max(axis=1) + _LITTLE * loads.mean(axis=1)
            score += _MUCH * scale * np.maximum(taken - allowed, 0.0).sum(axis=1)
            least = int(score.argmin())
            if score[least] < score[own] - _ROUNDING * abs(score[own]):
                choices[unit], totals, kept = least, loads[least], taken[least]
                changed = True
        if not changed:
            break
    return problem.existing(choices)


def limited_memory(problem: Problem) -> tuple[Floats, Floats]:
    """Memory as a fraction of its limit, on nodes with a limit, and the largest allowed fractions."""
    limited = np.isfinite(problem.limits)
    limits = np.maximum(problem.limits[limited], 1e-300)
    return problem.memory[:, :, limited] / limits, problem.allowed[limited] / limits
