"""Ranks of numbers, and the area under the ROC curve."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mean_ranks(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return ranks from 1. Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def auc(labels: NDArray[np.generic], scores: NDArray[np.float64]) -> float:
    """Return the probability that a sample of class 1 scores higher than one of class 0; ties count one half.

    It is computed from the ranks, as the Mann-Whitney U statistic divided by the number of pairs.

    Parameters
    ----------
    labels : (n,) array of 0 and 1
        Class of each sample.
    scores : (n,) float64
        Scores that increase with the probability of class 1, for example logits.

    Returns
    -------
    float
        Probability in [0, 1]; NaN if a score is NaN.

    Raises
    ------
    ValueError
        If all labels are of one class.
    """
    positive = labels == 1
    positives = int(positive.sum())
    others = len(positive) - positives
    if positives == 0 or others == 0:
        raise ValueError(f"there are {positives} labels 1 and {others} labels 0: the AUC needs both")
    if np.isnan(scores).any():
        return float("nan")
    u = mean_ranks(scores)[positive].sum() - positives * (positives + 1) / 2
    return float(u / (positives * others))
