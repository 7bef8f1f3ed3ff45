"""Seconds from features by a Gaussian process or regression trees, with calibrated intervals.

A `Regression` works on logarithms of seconds and of numeric features. Words become one indicator each, and
times become days. `judged` measures the errors on rows that no fit has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from adabench.analysis.tables import aligned
from adabench.analysis.tracking import tracked

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.9
"""Fraction of measured values that intervals should contain."""
FOLDS = 5
_FEWEST = 2 * FOLDS
FEWEST_GROUPS = round(LEVEL / (1 - LEVEL))
"""Minimum groups for an interval of another group: fewer groups cannot show `LEVEL` of all groups."""
_MARGIN = 0.05
"""Fraction of the end of a learned range by which a number may exceed it: measured features vary by this."""
_CHUNK = 256
"""Rows whose intervals are computed at once, to bound the memory."""
MOST_OF_A_PROCESS = 100
"""Maximum distinct rows for a Gaussian process, as trees learn better from more rows."""

_SHORTEST = 1e-9
"""Seconds; shorter times are raised to it, so that they have logarithms."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class RegressionError(ValueError):
    """Error if nothing can be learned from or predicted for some rows."""


@dataclass(frozen=True)
class Predicted:
    """Predictions of a regression for some rows.

    Attributes
    ----------
    seconds, low, high : array of float
        Predictions, and the ends of the intervals around them, of the level `LEVEL`. The ends are NaN without
        an interval: if the row is extrapolated, or predicted for another group by fewer than `FEWEST_GROUPS`.
    extrapolated : list of list of str
        Features of each row that are outside the range of the training rows; empty if there are none.
    """

    seconds: Floats
    low: Floats
    high: Floats
    extrapolated: list[list[str]]


@dataclass(frozen=True)
class Judgement:
    """Quality of predictions for held-out rows.

    Attributes
    ----------
    rows : int
        Number of rows.
    median, p90 : float
        Median and ninth decile of the relative errors, as fractions of the measured seconds.
    rank : float
        Spearman's correlation of predicted and measured seconds.
    intervals : float
        Fraction of the rows that have an interval.
    covered : float
        Fraction of the intervals that contain the measured seconds; NaN if there is no interval.
    width : float
        The median of upper ÷ lower ends of intervals; NaN if there is no interval.
    """

    rows: int
    median: float
    p90: float
    rank: float
    intervals: float
    covered: float
    width: float


class _Model(Protocol):
    def predict(self, features: Floats, /) -> Floats: ...


class Regression:
    """Predicts seconds; made by `fit`.

    Intervals are computed by CV+. A row's residual comes from the model that was fitted without its fold. An
    interval combines the predictions of all these models, each widened by the residuals of its fold (Barber,
    Candès, Ramdas and Tibshirani, *Predictive inference with the jackknife+*, Annals of Statistics 49(1),
    2021). For rows with the distribution of the training rows, intervals contain at least 80 % with any
    model, and usually about `LEVEL`.

    With groups, each group has the same weight, however many rows it has, and one more group could have any
    residual (Lee, Barber and Willett, *Distribution-free inference with hierarchical data*, 2023).
    """

    def __init__(self, parts: list[_Sum], held_out: _HeldOut, columns: _Columns, whole: _Sum) -> None:
        self._parts, self._held_out = parts, held_out
        self._columns, self._whole = columns, whole

    @classmethod
    def fit(
        cls,
        features: pd.DataFrame,
        seconds: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        base: npt.ArrayLike | None = None,
        seed: int = 0,
    ) -> Regression:
        """Learn from measurements.

        Parameters
        ----------
        features : DataFrame
            Features with one row for each measurement; columns are numbers, words or times.
        seconds : array of float
            Measured seconds, more than 0 and finite. Several columns are parts of a sum: each part is
            learned, and the sum is predicted.
        groups : array, optional
            Groups of rows that stay together in the folds that give residuals. Predictions are then meant for
            other groups. Without it folds are drawn at random.
        base : array of float, optional
            Expected seconds of each part. The regression learns the factor from expected to measured seconds.
        seed : int
            Seed for folds and trees.

        Raises
        ------
        RegressionError
            If there are too few rows or groups, or scikit-learn is not installed.
        """
        measured = _columns(seconds)
        expected = np.ones_like(measured) if base is None else _columns(base)
        target = np.log(measured.sum(axis=1))
        if len(target) < _FEWEST:
            raise RegressionError(
                f"{len(target)} measurements are too few to learn from: {_FEWEST} are needed"
            )
        folds = parts_at_random(len(target), FOLDS, seed) if groups is None else _folds_of(groups, seed)
        columns = _Columns(features)
        encoded = columns.encoded(features)
        few = len(np.unique(encoded, axis=0)) <= MOST_OF_A_PROCESS
        learn = partial(_process, groups=columns.groups()) if few else partial(_trees, seed=seed)
        residuals = np.empty(len(target))
        parts = []
        for fold in range(folds.max() + 1):
            own = folds == fold
            parts.append(_Sum(encoded[~own], measured[~own], expected[~own], learn))
            residuals[own] = np.abs(target[own] - parts[-1].predict(encoded[own], expected[own]))
        weights = _weights(np.arange(len(target)) if groups is None else groups)
        held_out = _HeldOut(residuals, folds, weights)
        return cls(parts, held_out, columns, _Sum(encoded, measured, expected, learn))

    def predict(self, features: pd.DataFrame, base: npt.ArrayLike | None = None) -> Predicted:
        """Predict seconds.

        Parameters
        ----------
        features : DataFrame
            Features with one row for each prediction and the columns of `fit`.
        base : array of float, optional
            Expected seconds of each part, if `fit` had them.
        """
        encoded = self._columns.encoded(features)
        expected = np.ones((len(encoded), self._whole.count)) if base is None else _columns(base)
        centre = self._whole.predict(encoded, expected)
        each = np.stack([part.predict(encoded, expected) for part in self._parts])
        low, high = self._held_out.ends(each)
        # With few rows, the prediction of the model for all rows may be outside the range of the folds'
        # models.
        low, high = np.minimum(low, centre), np.maximum(high, centre)
        said = np.exp(np.stack([centre, low, high]))
        outside = self._columns.outside(features)
        said[1:, [bool(texts) for texts in outside]] = np.nan
        return Predicted(said[0], said[1], said[2], outside)


@dataclass(frozen=True)
class _HeldOut:
    """Residuals of rows by the models without their folds, and the weights of these rows."""

    residuals: Floats
    folds: Integers
    weights: Floats

    def ends(self, each: Floats) -> tuple[Floats, Floats]:
        """Lower and upper ends of intervals, given each fold's predictions; NaN where there is no bound."""
        low, high = (np.empty(each.shape[1]) for _ in range(2))
        for begin in range(0, each.shape[1], _CHUNK):
            some = slice(begin, begin + _CHUNK)
            centres, widths = each[self.folds, some], self.residuals[:, None]
            low[some] = -self._quantile(widths - centres)
            high[some] = self._quantile(centres + widths)
        return low, high

    def _quantile(self, values: Floats) -> Floats:
        """Return for each column the least value that is not exceeded by `LEVEL` of the weights."""
        order = np.argsort(values, axis=0)
        # The level is slightly lower, because sums of equal weights are rounded.
        reached = np.cumsum(self.weights[order], axis=0) >= LEVEL - 1e-9
        rank = np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0)
        found = np.take_along_axis(values, rank, axis=0)[0]
        return np.where(reached.any(axis=0), found, np.nan)


def _weights(groups: npt.ArrayLike) -> Floats:
    """Return weights of rows: equal sums for all groups, and for one further group."""
    _, own, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    return np.asarray(1 / (len(sizes) + 1) / sizes[own], dtype=np.float64)


def judged(
    features: pd.DataFrame,
    seconds: npt.ArrayLike,
    parts: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
    base: npt.ArrayLike | None = None,
    seed: int = 0,
) -> tuple[Judgement, Predicted]:
    """Hold out each part in turn, learn from the other parts, and compare predictions with measurements.

    `parts` has the part of each row, and the other arguments are as in `Regression.fit`. Returns the
    judgement, and the predictions of all rows, each predicted when it was held out.
    """
    several = _columns(seconds)
    measured = several.sum(axis=1)
    labels = np.unique(np.asarray(parts), return_inverse=True)[1]
    together = None if groups is None else np.asarray(groups)
    said = np.empty((3, len(measured)))
    outside: list[list[str]] = [[] for _ in measured]
    for part in tracked(range(labels.max() + 1), "holding out"):
        out = labels == part
        if out.all():
            raise RegressionError(
                "all rows belong to one part: without this part, no row is left to learn from"
            )
        own = None if together is None else together[~out]
        expected = (None, None) if base is None else (np.asarray(base)[~out], np.asarray(base)[out])
        learned = Regression.fit(features[~out], several[~out], own, expected[0], seed)
        found = learned.predict(features[out], expected[1])
        said[:, out] = found.seconds, found.low, found.high
        for row, text in zip(np.flatnonzero(out), found.extrapolated, strict=True):
            outside[row] = text
    return judgement_of(measured, said), Predicted(said[0], said[1], said[2], outside)


def judgement_of(measured: Floats, said: Floats) -> Judgement:
    """Compare seconds with predictions and the ends of their intervals."""
    from scipy.stats import spearmanr

    seconds, low, high = said
    errors = np.abs(seconds / measured - 1)
    alike = len(set(measured)) < 2 or len(set(seconds)) < 2
    given, nan = np.isfinite(low), float("nan")
    return Judgement(
        rows=len(measured),
        median=float(np.median(errors)),
        p90=float(np.quantile(errors, 0.9)),
        rank=nan if alike else float(spearmanr(seconds, measured).statistic),
        intervals=float(np.mean(given)),
        covered=float(np.mean((low <= measured)[given] & (measured <= high)[given])) if given.any() else nan,
        width=float(np.median((high / low)[given])) if given.any() else nan,
    )


def judgement_lines(judgements: Sequence[tuple[str, Judgement]]) -> list[str]:
    """Return a table with a line per judgement: the held-out rows, and the quality of their predictions."""
    rows = [
        (
            held_out,
            f"{one.rows:,}",
            *(_percent(one.median), _percent(one.p90), f"{one.rank:.3f}", _percent(one.intervals)),
            *(("-", "-") if math.isnan(one.covered) else (_percent(one.covered), f"{one.width:.3g}")),
        )
        for held_out, one in judgements
    ]
    names = ("held out", "rows", "median", "P90", "rank", "intervals", "covered", "high/low")
    lines = aligned([names, *rows])
    if any(one.intervals < 1 for _, one in judgements):
        lines.append(
            f"extrapolated rows have no interval; neither have rows of a group that is predicted from "
            f"fewer than "
            f"{FEWEST_GROUPS} groups"
        )
    return lines


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %" if part < 10 else f"{100 * part:.2g} %"


def parts_at_random(rows: int, parts: int, seed: int) -> Integers:
    """Return a random part from 0 to `parts` - 1 for each row; all parts are equally frequent."""
    return np.random.default_rng(seed).permutation(np.arange(rows, dtype=np.int64) % parts)


def usable(seconds: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which values can be learned from: finite numbers greater than 0."""
    values = np.asarray(seconds, dtype=np.float64)
    return np.isfinite(values) & (values > 0)


class _Columns:
    """Encodes features as numbers, and stores the range of the training rows."""

    def __init__(self, features: pd.DataFrame) -> None:
        self._numbers: dict[str, tuple[float, float]] = {}
        self._words: dict[str, list[str]] = {}
        self._times: dict[str, tuple[float, float]] = {}
        for name in features.columns:
            if _is_time(features[name]):
                days = _days(features[name])
                self._times[name] = float(days.min()), float(days.max())
            elif _is_number(features[name]):
                values = self._finite(features, name)
                self._numbers[name] = float(values.min()), float(values.max())
            else:
                self._words[name] = sorted(set(features[name].astype(str)))
        if not len(features.columns):
            raise RegressionError("there are no features to learn from")

    def encoded(self, features: pd.DataFrame) -> Floats:
        """Encode numbers as logarithms, words as indicator columns, and times as days.

        Values are bounded, to limit extrapolation: a number's logarithm by its learned range, extended by the
        length of the range on either side, and a day by the learned days.
        """
        for name in [*self._numbers, *self._words, *self._times]:
            if name not in features.columns:
                raise RegressionError(f"there is no column {name!r}, which the model has learned from")
        columns: list[Floats] = []
        for name, ends in self._numbers.items():
            low, high = _logarithms(np.array(ends))
            values = _logarithms(self._finite(features, name))
            columns.append(np.clip(values, 2 * low - high, 2 * high - low))
        for name, known in self._words.items():
            texts = features[name].astype(str).to_numpy()
            columns += [(texts == word).astype(np.float64) for word in known]
        for name, ends in self._times.items():
            columns.append(np.clip(_days(features[name]), *ends))
        return np.column_stack(columns)

    def groups(self) -> list[Integers]:
        """Which of the encoded columns are numbers, words and times."""
        counts = [len(self._numbers), sum(map(len, self._words.values())), len(self._times)]
        return np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])

    def outside(self, features: pd.DataFrame) -> list[list[str]]:
        """Return for each row its numbers and words outside the learned range or set; times are ignored."""
        found: list[list[str]] = [[] for _ in range(len(features))]
        for name, (low, high) in self._numbers.items():
            learned = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            least, most = low - _MARGIN * abs(low), high + _MARGIN * abs(high)
            for row, value in enumerate(self._finite(features, name)):
                if not least <= value <= most:
                    found[row].append(f"{name} {value:g}, learned from {learned}")
        for name, known in self._words.items():
            for row, text in enumerate(features[name].astype(str)):
                if text not in known:
                    found[row].append(f"{name} {text}, learned from {', '.join(known)}")
        return found

    @staticmethod
    def _finite(features: pd.DataFrame, name: str) -> Floats:
        if not _is_number(features[name]):
            raise RegressionError(f"column {name!r} has numbers in the learned rows, but words in these rows")
        values = features[name].to_numpy(dtype=np.float64)
        wrong = np.flatnonzero(~np.isfinite(values))
        if wrong.size:
            raise RegressionError(
                f"row {features.index[wrong[0]] + 1} has no finite {name!r}: fill it in, or leave out the "
                "row or the column"
            )
        return values


class _Sum:
    """Models for each part of a sum: they predict the logarithm of its ratio to the expected seconds."""

    def __init__(
        self,
        features: Floats,
        seconds: Floats,
        expected: Floats,
        learn: Callable[[Floats, Floats], Sequence[_Model]],
    ) -> None:
        targets = np.log(np.maximum(seconds, _SHORTEST)) - np.log(expected)
        self._models = [_fitted(learn, features, target) for target in targets.T]

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self._models)

    def predict(self, features: Floats, expected: Floats) -> Floats:
        """The logarithm of the sum's seconds."""
        factors = [np.mean([one.predict(features) for one in several], axis=0) for several in self._models]
        said = np.logaddexp.reduce(np.column_stack(factors) + np.log(expected), axis=1)
        return np.asarray(said, dtype=np.float64)


def _fitted(
    learn: Callable[[Floats, Floats], Sequence[_Model]], features: Floats, target: Floats
) -> Sequence[_Model]:
    """Fit the models; their mean is the prediction."""
    try:
        from threadpoolctl import threadpool_limits

        # With few rows, several threads mostly wait for each other, and spin if cores are busy.
        with threadpool_limits(1):
            return learn(features, target)
    except ModuleNotFoundError as error:
        raise RegressionError(
            "predictions need scikit-learn, which is not installed: pip install 'adabench[estimate]'"
        ) from error


def _process(features: Floats, target: Floats, groups: Sequence[Integers]) -> list[_Model]:
    from adabench.analysis.gaussian_process import Process

    return [Process(features, target, groups)]


def _trees(features: Floats, target: Floats, seed: int) -> list[_Model]:
    """Gradient-boosted and extremely randomised trees."""
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

    boosted = HistGradientBoostingRegressor(
        max_iter=min(max(len(target) // 10, 100), 400),
        min_samples_leaf=min(5, max(len(target) // 20, 1)),
        random_state=seed,
        early_stopping=False,
    )
    return [model.fit(features, target) for model in (boosted, ExtraTreesRegressor(60, random_state=seed))]


def _folds_of(groups: npt.ArrayLike, seed: int) -> Integers:
    """Folds of whole groups: one each if they are few."""
    labels = np.unique(np.asarray(groups), return_inverse=True)[1]
    count = int(labels.max()) + 1
    if count < 2:
        raise RegressionError(
            "all rows belong to one group: at least two groups are needed to predict another one"
        )
    return parts_at_random(count, min(count, 2 * FOLDS), seed)[labels]


def _columns(seconds: npt.ArrayLike) -> Floats:
    """Return one column for each part; a single column is one part."""
    found = np.asarray(seconds, dtype=np.float64)
    return found[:, None] if found.ndim == 1 else found


def _logarithms(values: Floats) -> Floats:
    """Return signed logarithms of the absolute values plus one."""
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)), dtype=np.float64)


def _days(column: pd.Series[Any]) -> Floats:
    return np.asarray(column.to_numpy(dtype="datetime64[s]").astype(np.float64) / 86_400, dtype=np.float64)


def _is_time(column: pd.Series[Any]) -> bool:
    from pandas.api.types import is_datetime64_any_dtype

    return bool(is_datetime64_any_dtype(column))


def _is_number(column: pd.Series[Any]) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(column) and not is_bool_dtype(column))
