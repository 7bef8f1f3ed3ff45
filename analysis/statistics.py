"""The statistics of runs: exact intervals for medians, paired ratios, correction for several comparisons.

Nothing here assumes a distribution: intervals and p-values come from the binomial law of how many values lie
below the median (Conover, Practical Nonparametric Statistics, 3rd ed., sections 3.1 and 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

__all__ = [
    "Interval",
    "fewest_blocks",
    "holm_levels",
    "median_interval",
    "outliers",
    "relative_half_width",
    "sign_test",
]

_MAD_TO_SIGMA = 1.4826
"""Makes the median absolute deviation an estimate of the standard deviation of normal values."""


@dataclass(frozen=True)
class Interval:
    """A median, and an interval that covers it with the stated confidence at least; NaN where n is too
    small.
    """

    median: float
    low: float
    high: float
    confidence: float


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The sample median and the exact interval for the population's median.

    Parameters
    ----------
    values : sequence of float
        At least one.
    confidence : float
        Nominal; the interval's own is at least that. It needs n values with 1 - 2^(1-n) >= confidence,
        which is six for 95 %.
    """
    if len(values) == 1:
        return Interval(values[0], math.nan, math.nan, confidence)
    # scipy-stubs say that this is a number; it is a pair.
    found: Any = stats.quantile_test(values, q=0, p=0.5).confidence_interval(confidence)
    return Interval(float(np.median(values)), float(found.low), float(found.high), confidence)


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided exact p-value of the median being zero; differences of zero say nothing and do not count."""
    moved = [value for value in differences if value != 0]
    if not moved:
        return 1.0
    return float(stats.binomtest(sum(value > 0 for value in moved), len(moved)).pvalue)


def holm_levels(p_values: Sequence[float], alpha: float = 0.05) -> list[float]:
    """The level that each comparison is judged at, by Holm's step-down procedure.

    The smallest p-value is judged at alpha/m, the next at alpha/(m-1), and so on; from the first that is
    not significant on, all are judged at that one's level. A comparison is significant if its p-value is at
    most its level; the probability of any false one is then at most alpha.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    levels = [0.0] * len(p_values)
    level, stopped = alpha, False
    for rank, index in enumerate(order):
        if not stopped:
            level = alpha / (len(p_values) - rank)
            stopped = p_values[index] > level
        levels[index] = level
    return levels


def fewest_blocks(level: float) -> int:
    """The least number of pairs that can be significant at a level: all of one sign have p = 2^(1-n)."""
    return math.ceil(1 - math.log2(level))


def outliers(values: Sequence[float], factor: float = 10.0) -> list[int]:
    """Indices of values beyond median ± factor · 1.4826 · MAD; they are flagged, never deleted."""
    centre = float(np.median(values))
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(np.asarray(values) - centre)))
    return [
        index for index, value in enumerate(values) if spread > 0 and abs(value - centre) > factor * spread
    ]


def relative_half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Half the width of the median's interval over the median; infinite where n is too small for one."""
    interval = median_interval(values, confidence)
    width = (interval.high - interval.low) / 2 / interval.median
    return width if math.isfinite(width) else math.inf
