"""Stretches of steps in which rows of tables move or stay, and what they show of either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

WARM_UP = 8
"""Steps before the first stretch, in which all rows move: what is done for the first time takes longer."""
STRETCH = 8
"""Steps of a stretch, in which a table's rows either move or stay."""
EDGE = 2
"""Steps beside a change that are not counted, as what is announced for one stretch is done in the other."""
AHEAD = EDGE
"""Batches that are announced ahead, at most, as long as it is not decided."""
GROUPS = 3
"""Parts of the tables that are tried apart from each other."""
TOGETHER = 4
"""First pairs in which all tables move or stay together, if there are several: if that makes a great
difference, half of the steps of a longer trial would cost more than tables that are told apart may save."""
GREAT = math.log(1.2)
"""Such a difference, of logarithms of seconds."""
MOST_PAIRS = 8
"""Pairs of stretches, behind those `TOGETHER`, after which it is decided in any case. What is not clear till
then hardly differs, so that deciding wrongly costs little; going on costs half of the difference, too."""
LEAST = 2
"""Steps of a stretch that have to be counted."""
OUTLIER = 2.0
"""A step counts as so many of its stretch's middle ones at most: it may be another thing's time."""
NOISE = 0.07
"""What the logarithm of a pair's quotient is taken to vary by at least."""
CERTAIN = 2.0
"""An effect is clear if it is so many times what it may be off by by that,"""
STUDENT = (12.71, 3.18, 2.57, 2.36)
"""and, for 1, 2, … blocks of pairs, by what is measured: quantiles of 97.5 % of Student's distribution with
1, 3, … degrees of freedom."""
_SHORTEST = 1e-9


@dataclass(frozen=True)
class Schedule:
    """In which steps rows move as long as it is tried.

    Two stretches make a pair: in one of them a group's rows move, in the other they stay. Which comes first,
    and what the other groups do meanwhile, is balanced over a block of pairs, by the columns of a Hadamard
    matrix: neither the other groups nor a steady drift of the machine is taken for the group's effect. Of
    several groups all do the same in the first pairs.

    Attributes
    ----------
    groups : int
        From 1 to `GROUPS`.
    """

    groups: int

    @property
    def together(self) -> int:
        """First pairs in which several groups do the same."""
        return 0 if self.groups == 1 else TOGETHER

    @property
    def most(self) -> int:
        """Pairs after which it is decided in any case."""
        return self.together + MOST_PAIRS

    def stretch_of(self, position: int) -> int:
        """The number of the stretch in which a step is that comes after the warm-up."""
        return (position - WARM_UP) // STRETCH

    def end_of(self, pair: int) -> int:
        """The number of the first step behind a pair."""
        return WARM_UP + 2 * STRETCH * (pair + 1)

    def sign(self, group: int, pair: int) -> int:
        """1 if the group's rows move in the second stretch of the pair, -1 if in the first one."""
        if pair < self.together:
            return _sign(0, pair)
        return _sign(group, pair - self.together)

    def moves(self, group: int, position: int) -> bool:
        """Whether the group's rows move in the step of this number, from 0 on."""
        if position < WARM_UP:
            return True
        stretch = self.stretch_of(position)
        return (stretch % 2 == 1) == (self.sign(group, stretch // 2) > 0)

    def counts(self, position: int) -> bool:
        """Whether a step is one of a stretch, and no group's rows begin or cease to move near it."""
        return position >= WARM_UP and all(
            self.moves(group, position - EDGE)
            == self.moves(group, position)
            == self.moves(group, position + EDGE)
            for group in range(self.groups)
        )

    def judge(self, pooled: Sequence[float | None], final: bool) -> list[float | None] | None:
        """For each group its effect, if all are clear or this is the last that is known; None otherwise.

        Parameters
        ----------
        pooled : sequence of float or None
            For each pair the logarithm of its second stretch's seconds ÷ the first one's, if it was measured.
        final : bool
            Whether there will be no more pairs.
        """
        together = _Blocks.of(pooled[: self.together], 1)
        if together.is_clear(0) and abs(together.effect(0)) >= GREAT:
            return [together.effect(0)] * self.groups
        apart = _Blocks.of(pooled[self.together :], self.groups)
        if apart.shown and (final or all(map(apart.is_clear, range(self.groups)))):
            return [apart.effect(group) for group in range(self.groups)]
        if not final:
            return None
        return [together.effect(0) if together.shown else None] * self.groups


def _sign(group: int, pair: int) -> int:
    """Of a column of a Hadamard matrix: each but the first has as many ones as others, and so has the product
    of two.
    """
    return 1 if ((group + 1) & pair % 4).bit_count() % 2 else -1


@dataclass(frozen=True)
class _Blocks:
    """Blocks of pairs, over which all is balanced; those of which a pair is void are left out."""

    shown: list[Shown]
    pairs: int
    """Of a block."""

    @classmethod
    def of(cls, pooled: Sequence[float | None], groups: int) -> _Blocks:
        pairs = 2 if groups == 1 else 4
        found = []
        for first in range(0, len(pooled) - pairs + 1, pairs):
            values = [value for value in pooled[first : first + pairs] if value is not None]
            if len(values) < pairs:
                continue
            effects = [
                fmean(_sign(group, pair) * value for pair, value in enumerate(values))
                for group in range(groups)
            ]
            found.append(Shown(effects, fmean(values)))
        return cls(found, pairs)

    def effect(self, group: int) -> float:
        return median(one.effects[group] for one in self.shown)

    def is_clear(self, group: int) -> bool:
        """Whether the effect is more than what noise makes of nothing."""
        if not self.shown:
            return False
        count = len(self.shown)
        values = [one.effects[group] for one in self.shown]
        centre = fmean(values)
        squares = sum((value - centre) ** 2 for value in values) + sum(one.rest**2 for one in self.shown)
        measured = STUDENT[count - 1] * math.sqrt(squares / (2 * count - 1))
        least = CERTAIN * NOISE / math.sqrt(self.pairs)
        return abs(self.effect(group)) >= max(measured, least) / math.sqrt(count)


@dataclass(frozen=True)
class Shown:
    """What a block of pairs shows, of logarithms of quotients.

    Attributes
    ----------
    effects : list of float
        For each group, of moving ÷ staying.
    rest : float
        Of later ÷ earlier, whatever moves: a machine that becomes slower or faster, and noise. It varies as
        the effects do, and is no effect, so that it tells of a single block how far these may be off.
    """

    effects: list[float]
    rest: float


def typical(seconds: Sequence[float]) -> float:
    """What a step takes: the mean, in which none counts for more than `OUTLIER` middle ones."""
    most = OUTLIER * median(seconds)
    return max(fmean(min(one, most) for one in seconds), _SHORTEST)
