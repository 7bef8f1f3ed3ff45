"""Quality of predicted click probabilities: area under the ROC curve and log-loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.rank_statistics import mean_ranks


def auc(labels: NDArray[np.generic], scores: NDArray[np.float64]) -> float:
    """The probability that a random click scores above a random non-click, where a tie counts one half.

    Computed from the ranks, as the Mann-Whitney U statistic divided by the number of pairs.

    Parameters
    ----------
    labels : (n,) array of 0 and 1
    scores : (n,) float64
        Any scores that grow with the probability of a click, for example logits.

    Returns
    -------
    float
        In [0, 1], or NaN if a score is NaN.

    Raises
    ------
    ValueError
        If the labels are of one class only.
    """
    positive = labels == 1
    clicks = int(positive.sum())
    others = len(positive) - clicks
    if clicks == 0 or others == 0:
        raise ValueError(f"there are {clicks} labels 1 and {others} labels 0: the AUC needs both")
    if np.isnan(scores).any():
        return float("nan")
    u = mean_ranks(scores)[positive].sum() - clicks * (clicks + 1) / 2
    return float(u / (clicks * others))


def logloss(labels: NDArray[np.generic], logits: NDArray[np.float64]) -> float:
    """Mean negative log-likelihood in nats of labels 0 and 1 under the probabilities sigmoid(logits)."""
    signed = np.where(labels == 1, -logits, logits)
    with np.errstate(invalid="ignore"):  # the NaN of a diverged model is the answer, not a mistake here
        return float(np.logaddexp(0.0, signed).mean())
