"""AUC and log-loss of the use case ctr against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adabench.usecases.common.rank_statistics import auc
from adabench.usecases.ctr.metrics import logloss

LABELLED_SCORES = st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=2, max_size=40).filter(
    lambda pairs: len({label for label, _ in pairs}) == 2
)


@given(LABELLED_SCORES)
def test_auc_is_the_share_of_ordered_pairs_with_ties_as_halves(pairs: list[tuple[bool, int]]) -> None:
    clicks = [score for label, score in pairs if label]
    others = [score for label, score in pairs if not label]
    won = sum((click > other) + 0.5 * (click == other) for click in clicks for other in others)

    labels, scores = np.array([label for label, _ in pairs]), np.array([float(score) for _, score in pairs])

    assert auc(labels, scores) == pytest.approx(won / (len(clicks) * len(others)), abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([0.1, 0.2, 0.8, 0.9], 1.0), ([0.9, 0.8, 0.2, 0.1], 0.0), ([0.5, 0.5, 0.5, 0.5], 0.5)],
)
def test_auc_of_perfect_inverted_and_constant_scores(scores: list[float], expected: float) -> None:
    assert auc(np.array([0, 0, 1, 1]), np.array(scores)) == expected


def test_auc_needs_both_classes() -> None:
    with pytest.raises(ValueError, match="0 labels 1 and 3 labels 0: the AUC needs both"):
        auc(np.zeros(3), np.arange(3.0))


def test_metrics_of_diverged_scores_are_not_a_number() -> None:
    labels, scores = np.array([0, 1, 1]), np.array([0.0, math.nan, 1.0])
    assert math.isnan(auc(labels, scores))
    assert math.isnan(logloss(labels, scores))


def test_logloss_is_the_mean_negative_log_likelihood() -> None:
    generator = np.random.default_rng(1)
    labels, logits = generator.integers(0, 2, 100), generator.normal(0, 3, 100)
    probabilities = 1 / (1 + np.exp(-logits))
    expected = -np.mean(np.where(labels == 1, np.log(probabilities), np.log(1 - probabilities)))
    assert logloss(labels, logits) == pytest.approx(expected, rel=1e-12)


def test_logloss_of_extreme_logits_stays_finite() -> None:
    assert logloss(np.array([1, 0]), np.array([-1000.0, 1000.0])) == pytest.approx(1000.0)
    assert logloss(np.array([1, 0]), np.array([1000.0, -1000.0])) == pytest.approx(0.0)
