"""How the server draws samples of a table's rows: from which distribution, and by which scheme."""

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
"""What a sample may be drawn from, and what is announced for it: see `Sampling`."""


@dataclass(frozen=True)
class LogUniform:
    """Row k is drawn with probability log((k + 2) / (k + 1)) / log(rows + 1).

    That falls about as 1 / k, for tables whose rows are in the order of their frequency.
    """

    def of_rows(self, rows: int) -> _core.Distribution:
        """The distribution of a table's rows, as the core draws from it.

        Parameters
        ----------
        rows : int
            Number of rows.
        """
        return _core.Distribution(_core.DistributionKind.LOG_UNIFORM, rows)


class Weighted:
    """A row is drawn in proportion to its weight.

    A draw takes as long for many rows as for few (an alias table, Walker 1977); 20 bytes are kept per row on
    every node.

    Parameters
    ----------
    weights : array or sequence of float
        One for each row: finite, not negative, and not all 0. A row with weight 0 is never drawn. For words
        by their frequency, ``counts ** 0.75`` is usual.
    """

    def __init__(self, weights: npt.ArrayLike) -> None:
        import numpy as np  # not for those who draw no samples

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
        """The weights, read-only."""
        return self._weights

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighted) and self._weights.tobytes() == other._weights.tobytes()

    def __hash__(self) -> int:
        return hash(self._weights.tobytes())

    def __repr__(self) -> str:
        return f"Weighted(<{len(self._weights)} weights>)"

    def of_rows(self, rows: int) -> _core.Distribution:
        """The distribution of a table's rows, as the core draws from it.

        Parameters
        ----------
        rows : int
            Number of rows.

        Raises
        ------
        ValueError
            If there are not as many weights.
        """
        if rows != len(self._weights):
            raise ValueError(
                f"sampling has {len(self._weights)} weights for a table of {rows} rows; every row needs one"
            )
        return self._distribution


RowDistribution = Uniform | LogUniform | Weighted


@dataclass(frozen=True)
class Sampling:
    """How samples are drawn from a table: ``Table(..., sampling=Sampling(Weighted(counts), "pool"))``.

    Parameters
    ----------
    distribution : Uniform, LogUniform or Weighted
        How often each row is drawn; ``Uniform()`` for all alike.
    scheme : str
        One of `SAMPLING_SCHEMES`. ``local`` takes only rows that this node can read without a message when
        the sample is read, each with its probability among those; when it has found too few (64 candidates
        for each row in the mean), it draws the others as ``naive``. A row's probability differs from its own
        by no more than the share of the distribution that is elsewhere. ``naive`` draws and reads, with a
        message for what is elsewhere. ``preloc`` draws the same rows as ``naive``, but when the sample is
        prepared, and signals intent for them. ``pool`` signals intent for `pool_size` rows, and hands each of
        them out `reuse` times, in a new order each time, before another one takes its place. With
        replacement its draws are spread evenly, not independent: each part of the distribution has its turn.
    replacement : bool
        Whether a row may come twice in one sample. Without replacement a sample has no more rows than can be
        drawn, and with ``pool`` no more than `pool_size`, whose rows then differ, too.
    seed : int
        In [0, 2^64). Rows follow from the seed, the node, the worker, the table and how many samples this
        worker has prepared of it; with ``local`` also from what is here.
    pool_size, reuse : int
        Of ``pool``: how many rows it has, and how often each is used. The more often, the fewer rows are
        brought to this node, and the fewer different ones a training meets.
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
        """The sampling as the core takes it.

        Parameters
        ----------
        rows : int
            Of the table.
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
