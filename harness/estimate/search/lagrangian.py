"""Lower bounds by Lagrange multipliers, and the local improvement that all solvers share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adabench.harness.estimate.search.problem import Choices, Floats, Problem

__all__ = ["Multipliers", "better", "excess", "improved", "multipliers_of", "parts_of_limits"]

_STEPS = 100
_KEPT = 12
_LITTLE, _MUCH, _ROUNDING = 1e-4, 1e3, 1e-12


@dataclass(frozen=True)
class Multipliers:
    """Weights of loads, which add up to 1, and prices of memory, of which a bound follows.

    The largest load is at least any weighted mean of the loads, and prices of memory only lower what keeps
    the limits. What is left is a sum over units, each of which has its own least.

    Attributes
    ----------
    weights : float array
        Sets × loads.
    prices : float array
        Sets × nodes; 0 where there is no limit.
    bounds : float array
        What each set says is the least value of the problem.
    best : int array
        The best choices that were met on the way: those that keep limits best, and of these the least value.
    """

    weights: Floats
    prices: Floats
    bounds: Floats
    best: Choices


def excess(problem: Problem, kept: Floats) -> Floats:
    """How far memory is above the limits, as a part of them, summed over nodes."""
    limited = np.isfinite(problem.limits)
    scale = np.maximum(problem.limits[limited], 1e-300)
    over = np.maximum(kept[..., limited] - problem.allowed[limited], 0.0) / scale
    return np.asarray(over.sum(axis=-1))


def better(problem: Problem, one: Choices, other: Choices) -> bool:
    """Whether the first is better: keeps the limits better, or as well with a lesser value."""
    mine, theirs = ((float(excess(problem, problem.kept(x))), problem.value(x)) for x in (one, other))
    return mine < theirs


def multipliers_of(problem: Problem, steps: int = _STEPS) -> Multipliers:
    """Multipliers with high bounds, by exponentiated and projected subgradients.

    Parameters
    ----------
    problem : Problem
    steps : int
        Of the ascent.
    """
    limited = np.isfinite(problem.limits)
    limits = np.where(limited, problem.limits, 0.0)
    rows = np.arange(problem.units)
    best = problem.there(problem.loads.max(axis=2).argmin(axis=1))
    scale = max(problem.value(best), 1e-300)
    memory_scale = np.where(limited, np.maximum(limits, 1e-300), 1.0)
    logits = np.zeros(problem.base.size)
    prices = np.zeros(problem.limits.size)
    found: list[tuple[float, Floats, Floats]] = []
    for step in range(steps):
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        reduced = problem.loads @ weights + problem.memory @ prices
        choices = problem.there(reduced.argmin(axis=1))
        bound = float(weights @ problem.base - prices @ limits + reduced[rows, choices].sum())
        found.append((bound, weights, prices.copy()))
        if better(problem, choices, best):
            best = choices
        size = 4.0 / (1.0 + step) ** 0.6
        logits = logits + size * problem.totals(choices) / scale
        over = np.where(limited, (problem.kept(choices) - limits) / memory_scale, 0.0)
        prices = np.maximum(prices + 0.3 * size * over * scale / memory_scale, 0.0)
    found.sort(key=lambda one: -one[0])
    kept = found[:_KEPT]
    return Multipliers(
        np.stack([weights for _, weights, _ in kept]),
        np.stack([prices for _, _, prices in kept]),
        np.array([bound for bound, _, _ in kept]),
        best,
    )


def improved(problem: Problem, choices: Choices, sweeps: int = 12) -> Choices:
    """Change one unit after the other for the better, until none is, or so often.

    Limits come first, then the value; the mean of all loads counts a little, so that loads which are not the
    largest yet make room.
    """
    choices = choices.copy()
    scale = max(problem.value(choices), 1e-300)
    parts, allowed = parts_of_limits(problem)
    totals, kept = problem.totals(choices), parts[np.arange(problem.units), choices].sum(axis=0)
    for _ in range(sweeps):
        changed = False
        for unit in range(problem.units):
            own = choices[unit]
            loads = totals - problem.loads[unit, own] + problem.loads[unit]
            score = loads.max(axis=1) + _LITTLE * loads.mean(axis=1)
            memory = kept - parts[unit, own] + parts[unit]
            if len(allowed):
                score += _MUCH * scale * np.maximum(memory - allowed, 0.0).sum(axis=1)
            least = int(score.argmin())
            if score[least] < score[own] - _ROUNDING * abs(score[own]):
                choices[unit] = least
                totals, kept = loads[least], memory[least]
                changed = True
        if not changed:
            break
        # without what additions were rounded by
        totals, kept = problem.totals(choices), parts[np.arange(problem.units), choices].sum(axis=0)
    return problem.there(choices)


def parts_of_limits(problem: Problem) -> tuple[Floats, Floats]:
    """Memory as a part of its limit, where there is one, and the most that it may be."""
    limited = np.isfinite(problem.limits)
    limits = np.maximum(problem.limits[limited], 1e-300)
    return problem.memory[:, :, limited] / limits, problem.allowed[limited] / limits
