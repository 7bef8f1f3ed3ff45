"""Stretches of steps in which rows of tables move or stay, and what they show of either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

WARM_UP = 8
"""Steps before the first stretch, in which no rows move: what is done for the first time takes longer."""
STRETCH, LONG_STRETCH = 6, 8
"""Steps of a stretch, in which a table's rows either move or stay; and if there are several tables."""
EDGE = 2
"""Steps beside a change that are not counted, as what is announced for one stretch is done in the other."""
AHEAD = EDGE
"""Batches that are announced ahead, at most, as long as it is not decided."""
GROUPS = 3
"""Parts of the tables that are tried apart from each other."""
MOST_PAIRS = 16
"""Pairs of stretches after which it is decided in any case. What is not clear before hardly differs, so that
trying costs little; deciding wrongly costs as much in all steps that follow."""
LEAST = 2
"""Steps of a stretch that have to be counted."""
OUTLIER = 2.0
"""A step counts as so many of its stretch's middle ones at most: it may be another thing's time."""
NOISE = 0.1
"""What the logarithm of a pair's quotient is taken to vary by at least."""
CERTAIN = 2.0
"""An effect is clear if it is so many times what it may be off by by that,"""
STUDENT = (12.71, 3.18, 2.57, 2.36, 2.26, 2.20, 2.16, 2.13)
"""and, for 1, 2, … blocks of pairs, by what is measured: quantiles of 97.5 % of Student's distribution with
1, 3, … degrees of freedom."""
_SHORTEST = 1e-9


@dataclass(frozen=True)
class Schedule:
    """In which steps rows move as long as it is tried.

    Two stretches make a pair: in one of them a group's rows move, in the other they stay. Which comes first,
    and what the other groups do meanwhile, is balanced over a block of pairs, by the columns of a Hadamard
    matrix: neither the other groups nor a steady drift of the machine is taken for the group's effect.

    Attributes
    ----------
    groups : int
        From 1 to `GROUPS`.
    """

    groups: int

    @property
    def block(self) -> int:
        """Pairs over which all is balanced."""
        return 2 if self.groups == 1 else 4

    @property
    def stretch(self) -> int:
        """Steps of a stretch: more, where rows of some table begin or cease to move at both of its ends."""
        return STRETCH if self.groups == 1 else LONG_STRETCH

    def stretch_of(self, position: int) -> int:
        """The number of the stretch in which a step is that comes after the warm-up."""
        return (position - WARM_UP) // self.stretch

    def end_of(self, pair: int) -> int:
        """The number of the first step behind a pair."""
        return WARM_UP + 2 * self.stretch * (pair + 1)

    def sign(self, group: int, pair: int) -> int:
        """1 if the group's rows move in the second stretch of the pair, -1 if in the first one."""
        return -1 if ((group + 1) & (pair % self.block)).bit_count() % 2 else 1

    def moves(self, group: int, position: int) -> bool:
        """Whether the group's rows move in the step of this number, from 0 on."""
        if position < WARM_UP:
            return False
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

    def shown(self, pooled: Sequence[float | None], block: int) -> Shown | None:
        """What a block of pairs shows; None if a pair is void."""
        pairs = range(block * self.block, (block + 1) * self.block)
        values = [pooled[pair] for pair in pairs]
        if any(value is None for value in values):
            return None
        effects = [
            fmean(self.sign(group, pair) * (value or 0.0) for pair, value in zip(pairs, values, strict=True))
            for group in range(self.groups)
        ]
        return Shown(effects, fmean(value or 0.0 for value in values))

    def judge(self, pooled: Sequence[float | None], final: bool) -> list[float | None] | None:
        """For each group its effect, if all are clear or this is the last that is known; None otherwise.

        Parameters
        ----------
        pooled : sequence of float or None
            For each pair the logarithm of its second stretch's seconds ÷ the first one's, if it was measured.
        final : bool
            Whether there will be no more pairs.
        """
        blocks = [self.shown(pooled, block) for block in range(len(pooled) // self.block)]
        usable = [one for one in blocks if one is not None]
        if not usable:
            return [None] * self.groups if final else None
        count = len(usable)
        least = CERTAIN * NOISE / math.sqrt(self.block)
        found: list[float | None] = []
        for group in range(self.groups):
            values = [one.effects[group] for one in usable]
            effect, centre = median(values), fmean(values)
            squares = sum((value - centre) ** 2 for value in values) + sum(one.rest**2 for one in usable)
            measured = STUDENT[count - 1] * math.sqrt(squares / (2 * count - 1))
            if not final and abs(effect) < max(measured, least) / math.sqrt(count):
                return None
            found.append(effect)
        return found


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
