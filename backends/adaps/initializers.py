"""Initial values of tables: functions of seed, row and column that are equal in all runs and on all nodes."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from adaps import _argument_checks, _core

__all__ = ["Constant", "Initializer", "Normal", "Uniform"]


@dataclass(frozen=True)
class Constant:
    """Every float is `value`.

    Parameters
    ----------
    value : float
        Initial value, finite; stored as float32.
    """

    value: float = 0.0

    def __post_init__(self) -> None:
        _argument_checks.number("value", self.value)

    def distribution(self) -> _core.Initializer:
        """Return the distribution for the core."""
        return _core.Initializer(_core.InitKind.CONSTANT, a=self.value)


@dataclass(frozen=True)
class Uniform:
    """Uniform in (`low`, `high`). As a table's `sampling`, without arguments: every row is equally likely.

    Parameters
    ----------
    low, high : float
        Bounds, finite, with `low` at most `high`.
    seed : int
        Seed in [0, 2^64). A float depends only on the seed, its row and its column.
    """

    low: float = 0.0
    high: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _argument_checks.number("low", self.low)
        _argument_checks.number("high", self.high, low=self.low)
        _argument_checks.number("high - low", self.high - self.low)
        check_seed(self.seed)

    def distribution(self) -> _core.Initializer:
        """Return the distribution for the core."""
        return _core.Initializer(_core.InitKind.UNIFORM, a=self.low, b=self.high, seed=self.seed)


@dataclass(frozen=True)
class Normal:
    """Normal with the given mean and standard deviation.

    Parameters
    ----------
    mean : float
        Mean, finite.
    std : float
        Standard deviation, 0 or more.
    seed : int
        Seed in [0, 2^64). A float depends only on the seed, its row and its column.
    """

    mean: float = 0.0
    std: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _argument_checks.number("mean", self.mean)
        _argument_checks.number("std", self.std, low=0.0)
        check_seed(self.seed)

    def distribution(self) -> _core.Initializer:
        """Return the distribution for the core."""
        return _core.Initializer(_core.InitKind.NORMAL, a=self.mean, b=self.std, seed=self.seed)


Initializer = Constant | Uniform | Normal


def check_seed(seed: int) -> None:
    """Raise an error unless `seed` is an integer in [0, 2^64)."""
    try:
        value = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed is {seed!r}; it must be an integer") from None
    if not 0 <= value < 2**64:
        raise ValueError(f"seed is {seed!r}; it must be in [0, 2^64)")
