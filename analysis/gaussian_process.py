"""A Gaussian process for few and scattered measurements, such as those of some dozens of cells.

Rows that are alike in all features count as one measurement, with less noise the more they are. What a row
stands for is a sum of what is linear in the features, of what is alike where features are, and of what only
it has (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, MIT Press 2006, chapters 2 and 5).

The one of scikit-learn has no priors on what it learns, which so few measurements need, and no kernel with
noise that repetitions lower or with length scales that groups of features share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_ROWS", "Process"]

MOST_ROWS = 500
"""How many different rows `Process` is meant for: its time grows with the third power of their number."""
_JITTER = 1e-8
_ITERATIONS = 100
_ALIKE, _LINE, _OWN, _NOISE = range(4)
_PRIOR = np.array([0.0, -1.0, -4.0, -4.0]), np.array([2.0, 2.0, 3.0, 3.0])
"""Means and standard deviations of the logarithms of variances, of a target whose variance is 1."""
_SCALE_PRIOR = 0.0, 2.0
"""Of those of the weights of distances in each group, which are means over its columns."""

Floats = npt.NDArray[np.float64]


class Process:
    """Predicts a target from features in groups, each of which has a length scale of its own.

    Variances and scales are those that are most probable by the measurements and a wide prior.

    Parameters
    ----------
    features : array of float
        A row for each measurement.
    target : array of float
    groups : sequence of int arrays
        Columns; those that never change count for nothing.
    """

    def __init__(self, features: Floats, target: Floats, groups: Sequence[npt.NDArray[np.int64]]) -> None:
        rows, which, counts = np.unique(features, axis=0, return_inverse=True, return_counts=True)
        which = which.reshape(-1)
        values = np.array([np.median(target[which == row]) for row in range(len(rows))])
        self._mean, self._spread = float(values.mean()), float(values.std()) or 1.0
        self._centre, spread = rows.mean(axis=0), rows.std(axis=0)
        self._scale = np.where(spread > 0, spread, 1.0)
        changing = [group[spread[group] > 0] for group in groups]
        self._groups = [group for group in changing if len(group)]
        self._rows = self._scaled(rows)
        distances, products = self._compared(self._rows)
        values = (values - self._mean) / self._spread
        self._logs = _most_probable(values, distances, products, 1.0 / counts)
        covariance = _covariance(self._logs, distances, products)[0]
        covariance += np.diag(np.exp(self._logs[_OWN]) + np.exp(self._logs[_NOISE]) / counts + _JITTER)
        self._weights = np.linalg.solve(covariance, values)

    def predict(self, features: Floats) -> Floats:
        """The target of each row."""
        covariance = _covariance(self._logs, *self._compared(self._scaled(features)))[0]
        found = covariance @ self._weights * self._spread + self._mean
        return np.asarray(found, dtype=np.float64)

    def _scaled(self, features: Floats) -> Floats:
        return np.asarray((features - self._centre) / self._scale, dtype=np.float64)

    def _compared(self, rows: Floats) -> tuple[Floats, Floats]:
        """Mean squared distances to the learned rows in each group, and mean products over all groups."""
        known = self._rows
        distances = np.zeros((len(self._groups), len(rows), len(known)))
        products = np.zeros((len(rows), len(known)))
        for found, group in zip(distances, self._groups, strict=True):
            own, others = rows[:, group], known[:, group]
            found[:] = ((own[:, None] - others[None]) ** 2).mean(axis=-1)
            products += own @ others.T / (len(group) * len(self._groups))
        return distances, products


def _covariance(logs: Floats, distances: Floats, products: Floats) -> tuple[Floats, Floats]:
    """Of what rows have in common, and the part of it that is due to their being alike."""
    alike = np.exp(logs[_ALIKE] - np.tensordot(np.exp(logs[len(_PRIOR[0]) :]), distances, 1))
    return alike + np.exp(logs[_LINE]) * products, alike


def _most_probable(target: Floats, distances: Floats, products: Floats, noise: Floats) -> Floats:
    """Logarithms of variances and weights: the maximum of the posterior, from the prior's mean on."""
    from scipy.linalg import cho_factor, cho_solve
    from scipy.optimize import minimize

    count, groups = len(target), len(distances)
    mean = np.concatenate([_PRIOR[0], np.full(groups, _SCALE_PRIOR[0])])
    spread = np.concatenate([_PRIOR[1], np.full(groups, _SCALE_PRIOR[1])])

    def improbable(logs: Floats) -> tuple[float, Floats]:
        common, alike = _covariance(logs, distances, products)
        own = np.exp(logs[_OWN]) + np.exp(logs[_NOISE]) * noise
        factor = cho_factor(common + np.diag(own + _JITTER), lower=True)
        weights = cho_solve(factor, target)
        slope = np.outer(weights, weights) - cho_solve(factor, np.eye(count))
        diagonal = np.diag(slope)
        common_slope = slope * alike
        gradient = [
            common_slope.sum(),
            np.exp(logs[_LINE]) * (slope * products).sum(),
            np.exp(logs[_OWN]) * diagonal.sum(),
            np.exp(logs[_NOISE]) * (diagonal * noise).sum(),
        ]
        scales = zip(np.exp(logs[len(_PRIOR[0]) :]), distances, strict=True)
        gradient += [-weight * (common_slope * distance).sum() for weight, distance in scales]
        off = (logs - mean) / spread
        value = 0.5 * target @ weights + np.log(np.diag(factor[0])).sum() + 0.5 * off @ off
        return float(value), -0.5 * np.array(gradient) + off / spread

    bounds = list(zip(mean - 6 * spread, mean + 6 * spread, strict=True))
    found: Any = minimize(
        improbable, mean, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _ITERATIONS}
    )
    return np.asarray(found.x, dtype=np.float64)
