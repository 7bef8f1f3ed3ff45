"""Sampling of a table's rows by the server: distributions and schemes."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from adaps import _argument_checks, _core
from adaps._typing import SamplingScheme
from adaps.initializers import Uniform, check_seed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["SAMPLING_SCHEMES", "LogUniform", "RowDistribution", "Sampling", "Weighted"]

SAMPLING_SCHEMES: tuple[SamplingScheme, ...] = get_args(SamplingScheme)
"""Names of the sampling schemes; see `Sampling`."""


@dataclass(frozen=True)
class LogUniform:
    """Row k has the probability log((k + 2) / (k + 1)) / log(rows + 1).

    The probability is about proportional to 1 / k. It suits tables with rows in the order of their frequency.
    """

    def of_rows(self, rows: int) -> _core.Distribution:
        """Return the distribution over a table's rows, for the core.

        Parameters
        ----------
        rows : int
            Number of rows.
        """
        return _core.Distribution(_core.DistributionKind.LOG_UNIFORM, rows)


class Weighted:
    """Each row has a probability proportional to its weight.

    The time of a draw does not depend on the number of rows (alias table, Walker 1977). Every node stores 20
    bytes per row.

    Parameters
    ----------
    weights : array or sequence of float
        One weight for each row: finite, not negative, and not all 0. A row with weight 0 is never drawn. For
        words by their frequency, ``counts ** 0.75`` is usual.
    """

    def __init__(self, weights: npt.ArrayLike) -> None:
        import numpy as np  # imported here, because only samples need it

        array = np.asarray(weights, dtype=np.float64).copy()
        if array.ndim != 1 or array.size == 0:
            raise ValueError(
                f"weights has the shape {array.shape}; it must be an array of one dimension, with a weight "
                "for each row"
            )
        self._distribution = _core.Distribution.weighted(array)
        array.flags.writeable = False
        self._weights = array

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """Weights, read-only."""
        return self._weights

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighted) and self._weights.tobytes() == other._weights.tobytes()

    def __hash__(self) -> int:
        return hash(self._weights.tobytes())

    def __reduce__(self) -> tuple[type[Weighted], tuple[npt.NDArray[np.float64]]]:
        return Weighted, (self._weights,)

    def __repr__(self) -> str:
        return f"Weighted(<{len(self._weights)} weights>)"

    def of_rows(self, rows: int) -> _core.Distribution:
        """Return the distribution over a table's rows, for the core.

        Parameters
        ----------
        rows : int
            Number of rows.

        Raises
        ------
        ValueError
            If the number of weights differs from `rows`.
        """
        if rows != len(self._weights):
            raise ValueError(
                f"sampling has {len(self._weights)} weights for a table of {rows} rows; every row needs one"
            )
        return self._distribution


RowDistribution = Uniform | LogUniform | Weighted


@dataclass(frozen=True)
class Sampling:
    """Settings for samples of a table: ``Table(..., sampling=Sampling(Weighted(counts), "pool"))``.

    Parameters
    ----------
    distribution : Uniform, LogUniform or Weighted
        Probability of each row; ``Uniform()`` for equal probabilities.
    scheme : str
        One of `SAMPLING_SCHEMES`.

        ``naive`` draws when the sample is read, and reads remote rows with messages. ``preloc`` draws the
        same rows, but when the sample is prepared, and signals intent for them. ``pool`` signals intent for
        `pool_size` rows, and uses each of them `reuse` times, in a new random order each time, before another
        row replaces it. With replacement, its draws are stratified, not independent. ``local`` draws only
        rows that this node can read without a message at that time, in proportion to their probabilities. If
        it finds too few (64 candidates per row on average), it draws the rest like ``naive``. The probability
        of any set of rows changes by at most the total probability of the rows that are not local.
    replacement : bool
        Whether a row may occur twice in one sample. Without replacement, the size of a sample is limited to
        the number of rows that can be drawn, and with ``pool`` also to `pool_size`, whose rows then are
        distinct.
    seed : int
        Seed in [0, 2^64). Rows depend on the seed, the node, the worker, the table and the number of samples
        that this worker has prepared. With ``local``, they also depend on the local rows.
    pool_size, reuse : int
        Number of rows of the pool, and number of uses of each row, for the scheme ``pool``. With more reuse,
        fewer rows move to this node, and a training sees fewer different rows.
    """

    distribution: RowDistribution = field(default_factory=Uniform)
    scheme: SamplingScheme = "local"
    replacement: bool = True
    seed: int = 0
    pool_size: int = 4096
    reuse: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.distribution, RowDistribution):
            raise TypeError(
                f"distribution is {self.distribution!r}; it must be an adaps.Uniform, LogUniform or Weighted"
            )
        if isinstance(self.distribution, Uniform) and self.distribution != Uniform():
            raise ValueError(
                f"distribution is {self.distribution!r}; rows are drawn by Uniform() without bounds and "
                "seed: the seed of draws is that of adaps.Sampling"
            )
        _argument_checks.one_of("sampling scheme", self.scheme, SAMPLING_SCHEMES)
        if not isinstance(self.replacement, bool):
            raise TypeError(f"replacement is {self.replacement!r}; it must be True or False")
        check_seed(self.seed)
        _argument_checks.count("pool_size", self.pool_size, most=_core.MAX_KEYS)
        _argument_checks.count("reuse", self.reuse, most=_core.MAX_KEYS)

    def spec(self, rows: int) -> _core.SamplingSpec:
        """Return the settings for the core.

        Parameters
        ----------
        rows : int
            Number of rows of the table.
        """
        distribution = (
            _core.Distribution(_core.DistributionKind.UNIFORM, rows)
            if isinstance(self.distribution, Uniform)
            else self.distribution.of_rows(rows)
        )
        return _core.SamplingSpec(
            distribution,
            scheme=_core.SamplingScheme[self.scheme.upper()],
            replacement=self.replacement,
            seed=operator.index(self.seed),
            pool_size=self.pool_size,
            reuse=self.reuse,
        )
