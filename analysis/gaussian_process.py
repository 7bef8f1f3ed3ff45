"""The Gaussian process of scikit-learn for few measurements, such as some dozens of cells.

A prediction is the sum of a linear and of a smooth function of the features. Numbers, words and times have
one length scale each (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, MIT Press 2006).
With few measurements these scales and the variances need a wide prior. Scikit-learn has none, but calls an
optimizer, which adds it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

_SMOOTH, _SCALE, _LINE, _NOISE = (0.0, 2.0), (0.0, 1.0), (-1.0, 2.0), (-3.0, 2.0)
"""Means and standard deviations of logarithms of variances and length scales; the target has variance 1."""
_BOUND = 6
"""Standard deviations from their means that these logarithms may reach."""
_ITERATIONS = 100

Floats = npt.NDArray[np.float64]


class Process:
    """A fitted process; rows with equal features count as one measurement, their median.

    Parameters
    ----------
    features : array of float
        Features with one row for each measurement.
    target : array of float
        Target value of each measurement.
    groups : sequence of int arrays
        Columns that share a length scale; columns that never change are ignored.
    """

    def __init__(self, features: Floats, target: Floats, groups: Sequence[npt.NDArray[np.int64]]) -> None:
        rows, which = np.unique(features, axis=0, return_inverse=True)
        medians = [np.median(target[which.reshape(-1) == row]) for row in range(len(rows))]
        spread = rows.std(axis=0)
        used = [group[spread[group] > 0] for group in groups if spread[group].any()] or [np.array([0])]
        sizes = [len(group) for group in used]
        self._columns, self._centre = np.concatenate(used), rows.mean(axis=0)
        # Divided by the root of their number, columns of a group have the mean of their squared distances.
        self._scale = np.where(spread > 0, spread, 1.0)
        self._scale[self._columns] *= np.sqrt(np.repeat(sizes, sizes))
        priors = [_SMOOTH, *[_SCALE] * len(sizes), (_LINE[0] - np.log(len(sizes)), _LINE[1]), _NOISE]
        kernel = ConstantKernel() * _Groups([1.0] * len(sizes), sizes=sizes)
        kernel += ConstantKernel() * DotProduct(0.0, "fixed") + WhiteKernel()
        self._model = GaussianProcessRegressor(
            kernel, optimizer=_most_probable(*np.transpose(priors)), normalize_y=True
        )
        self._model.fit(self._scaled(rows), medians)

    def predict(self, features: Floats) -> Floats:
        """The target of each row."""
        return np.asarray(self._model.predict(self._scaled(features)), dtype=np.float64)

    def _scaled(self, features: Floats) -> Floats:
        return np.asarray(((features - self._centre) / self._scale)[:, self._columns], dtype=np.float64)


class _Groups(RBF):  # type: ignore[misc]
    """The squared exponential kernel with one length scale for each group of `sizes` columns."""

    def __init__(
        self, length_scale: Any = 1.0, length_scale_bounds: Any = (1e-5, 1e5), sizes: Any = (1,)
    ) -> None:
        super().__init__(length_scale, length_scale_bounds)
        self.sizes = sizes

    def __call__(self, X: Floats, Y: Floats | None = None, eval_gradient: bool = False) -> Any:
        ends = np.cumsum(self.sizes)
        others = X if Y is None else Y
        parts = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        distances = np.stack([cdist(X[:, part], others[:, part], "sqeuclidean") for part in parts], axis=-1)
        distances /= np.atleast_1d(self.length_scale) ** 2
        alike = np.exp(-0.5 * distances.sum(axis=-1))
        return (alike, alike[..., None] * distances) if eval_gradient else alike


def _most_probable(mean: Floats, spread: Floats) -> Callable[..., tuple[Floats, float]]:
    """An optimizer of scikit-learn that finds the maximum of the posterior, from the prior's mean on."""

    def optimizer(objective: Any, _initial: Floats, bounds: Floats) -> tuple[Floats, float]:
        def improbable(logs: Floats) -> tuple[float, Floats]:
            value, slope = objective(logs)
            off = (logs - mean) / spread
            return value + 0.5 * off @ off, slope + off / spread

        limits = list(zip(mean - _BOUND * spread, mean + _BOUND * spread, strict=True))
        found: Any = minimize(
            improbable, mean, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": _ITERATIONS}
        )
        return found.x, float(found.fun)

    return optimizer
