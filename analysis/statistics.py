"""The statistics of runs: paired differences, exact intervals, correction for several comparisons.

Differences within a block are judged by Wilcoxon's signed-rank test and the interval that belongs to it, both
exact (Wilcoxon, Individual comparisons by ranking methods, Biometrics Bulletin, 1945). They assume that, for
each size, positive and negative differences are equally likely if the two cells do not differ. The random
order within a block ensures this, even if the noise is not normal. The choice of this test is explained in
docs/concepts/statistics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A median, and an interval that covers it with at least the stated confidence.

    All three numbers are NaN if there are too few observations.
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
        Values of the sample, at least one.
    confidence : float
        Nominal confidence; the interval's confidence is at least this. It needs n values with 1 - 2^(1-n) >=
        confidence, which is six for 95 %.
    """
    if len(values) == 1:
        return Interval(values[0], math.nan, math.nan, confidence)
    from scipy import stats  # Importing scipy takes longer than most commands.

    # A pair of bounds, which scipy-stubs declare as a number.
    found: Any = stats.quantile_test(values, q=0, p=0.5).confidence_interval(confidence)
    return Interval(float(np.median(values)), float(found.low), float(found.high), confidence)


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> Interval:
    """The Hodges-Lehmann estimate of paired differences, and the exact interval of the signed-rank test.

    The estimate is the median of the means of all pairs of differences, each with itself included. The
    interval excludes zero if and only if `signed_rank_test` gives at most 1 - confidence.

    Parameters
    ----------
    differences : sequence of float
        Paired differences, at least one.
    confidence : float
        Nominal confidence; the interval's confidence is at least this. It needs n values with 1 - 2^(1-n) >=
        confidence, which is six for 95 %; with fewer its ends are NaN.
    """
    means = _pairwise_means(differences)
    below = [probability <= (1 - confidence) / 2 for probability in _signed_rank_cdf(len(differences))]
    cut = sum(below)  # Number of means that may be left out at either end.
    if cut == 0:
        return Interval(float(np.median(means)), math.nan, math.nan, confidence)
    return Interval(float(np.median(means)), float(means[cut - 1]), float(means[-cut]), confidence)


def signed_rank_test(differences: Sequence[float]) -> float:
    """Two-sided exact p-value of Wilcoxon's signed-rank test.

    If differences are zero or equal in size, pairs with a mean of zero count for the smaller side. The
    p-value is then too large rather than too small.
    """
    means = _pairwise_means(differences)
    smaller = len(means) - max(int((means > 0).sum()), int((means < 0).sum()))
    return min(1.0, 2 * _signed_rank_cdf(len(differences))[smaller])


def holm_levels(p_values: Sequence[float], alpha: float = 0.05) -> list[float]:
    """Return the level of each comparison, by Holm's step-down procedure.

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


def interim_analyses(first: int, most: int) -> list[int]:
    """Return the numbers of blocks after which a session that is being lengthened is analysed.

    The number of blocks grows by half each time. If every analysis is judged at a level divided by the number
    of analyses, the probability that any of them is wrong is at most that level (Bonferroni's inequality).
    This holds for any rule of stopping.
    """
    counts = [min(first, most)]
    while counts[-1] < most:
        counts.append(min(math.ceil(counts[-1] * 1.5), most))
    return counts


def outliers(values: Sequence[float], level: float = 0.01) -> list[int]:
    """Return indices of values far from the other values of their cell; they are flagged, never deleted.

    A value is compared with the mean and the standard deviation of all others by Student's t (the externally
    studentized residual), at the level divided by the number of values: of cells with normal values, at most
    that part have a flag. Where the others are all equal, their spread is not known, and none is flagged.
    """
    array = np.asarray(values, dtype=float)
    n = len(array)
    if n < 3:
        return []
    from scipy import stats  # The level is checked as above.

    rows = np.broadcast_to(array, (n, n))[~np.eye(n, dtype=bool)].reshape(n, n - 1)  # all but each one
    spread = rows.std(axis=1, ddof=1) * math.sqrt(1 + 1 / (n - 1))
    known = spread > 0
    t = np.divide(np.abs(array - rows.mean(axis=1)), spread, out=np.zeros(n), where=known)
    return [int(index) for index in np.flatnonzero(known & (2 * n * stats.t.sf(t, n - 2) <= level))]


def _pairwise_means(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Walsh averages, ascending."""
    array = np.asarray(values, dtype=float)
    first, second = np.triu_indices(len(array))
    return np.sort((array[first] + array[second]) / 2)


@cache
def _signed_rank_cdf(n: int) -> tuple[float, ...]:
    """Probability that the ranks of the positive ones among n random signs sum up to at most 0, 1, 2, ….

    The result has one probability for each sum.
    """
    ways = [1]  # ways[s]: in how many subsets of the ranks so far the sum is s
    for rank in range(1, n + 1):
        without, none = ways, [0] * rank
        ways = [one + other for one, other in zip(without + none, none + without, strict=True)]
    return tuple(count / 2**n for count in accumulate(ways))
