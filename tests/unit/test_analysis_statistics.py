from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from adabench.analysis.statistics import (
    fewest_blocks,
    holm_levels,
    median_interval,
    outliers,
    relative_half_width,
    sign_test,
)


def test_the_interval_of_six_runs_is_their_range() -> None:
    interval = median_interval([5, 1, 3, 2, 6, 4], 0.95)
    assert (interval.median, interval.low, interval.high) == (3.5, 1, 6)
    # 1 - 2^(1-6) = 96.9 % is more than 95 %, 1 - 2^(1-5) = 93.75 % is less.
    assert math.isnan(median_interval([1, 2, 3, 4, 5], 0.95).low)
    assert math.isnan(median_interval([1.0]).high)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    samples = generator.lognormal(0, 0.5, (400, 9))
    covered = [
        interval.low <= 1 <= interval.high for row in samples if (interval := median_interval(list(row)))
    ]
    # The exact coverage of [2nd, 8th] of nine is 96.1 %: fewer than 92 % of 400 has a probability below
    # 0.001.
    assert np.mean(covered) > 0.92


def test_sign_test_is_the_binomial_tail() -> None:
    assert sign_test([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 64)
    assert sign_test([1, 1, 1, 1, -1]) == pytest.approx(stats.binomtest(4, 5).pvalue)
    assert sign_test([0, 0]) == 1
    assert sign_test([0, 1, 1]) == sign_test([1, 1])


def test_holm_steps_down_and_stops() -> None:
    assert holm_levels([0.01, 0.04, 0.03]) == pytest.approx([0.05 / 3, 0.05 / 2, 0.05 / 2])
    assert holm_levels([0.01, 0.02, 0.03]) == pytest.approx([0.05 / 3, 0.05 / 2, 0.05])
    assert holm_levels([0.5, 0.9]) == pytest.approx([0.025, 0.025])
    assert holm_levels([]) == []


@pytest.mark.parametrize("level", [0.05, 0.05 / 3, 0.1])
def test_fewest_blocks_is_the_least_that_can_be_significant(level: float) -> None:
    n = fewest_blocks(level)
    assert sign_test([1.0] * n) <= level < sign_test([1.0] * (n - 1))


def test_outliers_are_far_from_the_median_in_units_of_the_spread() -> None:
    assert outliers([10, 10.1, 9.9, 10.2, 9.8, 30]) == [5]
    assert outliers([10, 10.1, 9.9, 10.2, 9.8, 10.9]) == []
    assert outliers([1, 1, 1, 5]) == []


def test_relative_half_width() -> None:
    assert relative_half_width([9, 10, 10, 10, 10, 11]) == pytest.approx(0.1)
    assert relative_half_width([9, 10, 11]) == math.inf
