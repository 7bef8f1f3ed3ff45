import math

import numpy as np
import pytest
from scipy import stats

from adabench.analysis.statistics import (
    fewest_blocks,
    holm_levels,
    interim_analyses,
    median_interval,
    outliers,
    paired_interval,
    signed_rank_test,
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


@pytest.mark.parametrize("n", range(2, 14))
def test_the_signed_rank_test_is_scipys(n: int) -> None:
    generator = np.random.default_rng(n)
    for differences in generator.normal(0.4, 1, (20, n)):
        assert signed_rank_test(differences) == pytest.approx(
            stats.wilcoxon(differences, method="exact").pvalue
        )


def test_equal_and_zero_differences_make_the_p_value_larger_never_smaller() -> None:
    assert signed_rank_test([0, 0, 0]) == 1
    assert signed_rank_test([1] * 6) == signed_rank_test([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 64)
    assert signed_rank_test([0, 2, 3, 4, 5, 6]) > signed_rank_test([1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("level", [0.05, 0.05 / 3, 0.2])
def test_the_interval_excludes_zero_when_the_test_does(level: float) -> None:
    generator = np.random.default_rng(7)
    excluded = 0
    for n in range(2, 14):
        for differences in generator.normal(0.5, 1, (20, n)):
            interval = paired_interval(differences, 1 - level)
            excludes = interval.low > 0 or interval.high < 0
            assert excludes == (signed_rank_test(differences) <= level)
            assert math.isnan(interval.low) == (n < fewest_blocks(level))
            excluded += excludes
    assert 0 < excluded < 240


def test_the_estimate_is_the_median_of_pairwise_means() -> None:
    # Means of pairs of 0, 1, 5: 0, 0.5, 1, 2.5, 3, 5.
    assert paired_interval([0, 1, 5]).median == pytest.approx(1.75)


def test_looks_grow_by_half_and_end_at_the_most() -> None:
    assert interim_analyses(6, 30) == [6, 9, 14, 21, 30]
    assert interim_analyses(8, 12) == [8, 12]
    assert interim_analyses(12, 12) == interim_analyses(20, 12) == [12]


def test_holm_steps_down_and_stops() -> None:
    assert holm_levels([0.01, 0.04, 0.03]) == pytest.approx([0.05 / 3, 0.05 / 2, 0.05 / 2])
    assert holm_levels([0.01, 0.02, 0.03]) == pytest.approx([0.05 / 3, 0.05 / 2, 0.05])
    assert holm_levels([0.5, 0.9]) == pytest.approx([0.025, 0.025])
    assert holm_levels([]) == []


@pytest.mark.parametrize("level", [0.05, 0.05 / 3, 0.1])
def test_fewest_blocks_is_the_least_that_can_be_significant(level: float) -> None:
    n = fewest_blocks(level)
    assert signed_rank_test([1.0] * n) <= level < signed_rank_test([1.0] * (n - 1))


def test_outliers_are_far_from_all_others_in_units_of_their_spread() -> None:
    assert outliers([10, 10.1, 9.9, 10.2, 9.8, 30]) == [5]
    assert outliers([10, 10.1, 9.9, 10.2, 9.8, 10.9]) == []
    assert outliers([1, 1, 1, 5]) == []  # the others' spread is not known
    assert outliers([1, 2]) == outliers([1]) == outliers([]) == []


@pytest.mark.parametrize("n", [3, 4, 6, 12])
def test_of_cells_with_normal_noise_one_in_a_hundred_has_a_flag(n: int) -> None:
    generator = np.random.default_rng(n)
    flagged = np.mean([bool(outliers(row)) for row in generator.normal(0, 1, (2000, n))])
    # At a true rate of 1 % more than 2 % of 2000 has a probability below 0.0001.
    assert flagged < 0.02
