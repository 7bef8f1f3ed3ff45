"""A/B schedule of a technique trial: phases with rows that move or stay, and the measured effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

WARM_UP = 8
"""Steps before the first phase, in which all rows move, as first executions take longer."""
PHASE = 8
"""Steps of a phase, in which a table's rows either move or stay."""
EDGE = 2
"""Steps around a change that do not count, as intent that belongs to one phase is handled in the other."""
AHEAD = EDGE
"""Largest number of batches ahead at which intent is signalled during the trial."""
GROUPS = 3
"""Largest number of groups of tables that are tried separately."""
TOGETHER = 4
"""First pairs, in which all of several groups move or stay together. If that makes a great difference, half
of the steps of a longer trial would cost more than separate decisions may save."""
GREAT = math.log(1.2)
"""Minimum great difference, of logarithms of seconds."""
MOST_PAIRS = 8
"""Pairs of phases, after those of `TOGETHER`, that end the trial. An effect that is not clear by then is
small, so that a wrong decision costs little."""
LEAST = 2
"""Minimum number of steps of a phase that count."""
OUTLIER = 2.0
"""Maximum of a step's time in medians of its phase, as other processes may interrupt a step."""
NOISE = 0.07
"""Least standard deviation that is assumed of the logarithm of a pair's quotient."""
CERTAIN = 2.0
"""Minimum ratio of a clear effect to its assumed standard error."""
STUDENT = (12.71, 3.18, 2.57, 2.36)
"""Minimum ratios of a clear effect to its measured standard error, for 1, 2, … blocks of pairs. They are the
quantiles of 97.5 % of Student's distribution with 1, 3, … degrees of freedom."""
_SHORTEST = 1e-9


@dataclass(frozen=True)
class Schedule:
    """Schedule of a trial: the steps when rows move.

    Two phases make a pair: in one of them a group's rows move, in the other they stay. Columns of a Hadamard
    matrix balance the order of the phases and the movement of other groups over a block of pairs. So neither
    the other groups nor a steady drift of the machine is taken for the group's effect.
    """

    groups: int

    @property
    def together(self) -> int:
        """Number of first pairs where all groups move or stay together."""
        return 0 if self.groups == 1 else TOGETHER

    @property
    def most(self) -> int:
        """Number of pairs that end the trial."""
        return self.together + MOST_PAIRS

    def phase_of(self, position: int) -> int:
        """Return the number of the phase of a step after the warm-up."""
        return (position - WARM_UP) // PHASE

    def end_of(self, pair: int) -> int:
        """Return the number of the first step after a pair."""
        return WARM_UP + 2 * PHASE * (pair + 1)

    def sign(self, group: int, pair: int) -> int:
        """Return 1 if the group's rows move in the second phase of the pair, -1 if in the first one."""
        return _sign(0, pair) if pair < self.together else _sign(group, pair - self.together)

    def moves(self, group: int, position: int) -> bool:
        """Whether the group's rows move in the step of this number, from 0 on."""
        if position < WARM_UP:
            return True
        phase = self.phase_of(position)
        return (phase % 2 == 1) == (self.sign(group, phase // 2) > 0)

    def counts(self, position: int) -> bool:
        """Whether a step is one of a phase, and no group's rows begin or cease to move near it."""
        return position >= WARM_UP and all(
            self.moves(group, position - EDGE)
            == self.moves(group, position)
            == self.moves(group, position + EDGE)
            for group in range(self.groups)
        )

    def judge(self, pooled: Sequence[float | None], final: bool) -> list[float | None] | None:
        """Return the effect of each group, if all are clear or `pooled` is final; None otherwise.

        Parameters
        ----------
        pooled : sequence of float or None
            Logarithm of the ratio of the second phase's seconds to the first phase's for each pair; None if
            the pair was not measured.
        final : bool
            Whether no more pairs will follow.
        """
        together = _Blocks(pooled[: self.together], 1)
        if together.is_clear(0) and abs(together.effect(0)) >= GREAT:
            return [together.effect(0)] * self.groups
        apart = _Blocks(pooled[self.together :], self.groups)
        if apart and (final or all(map(apart.is_clear, range(self.groups)))):
            return [apart.effect(group) for group in range(self.groups)]
        if not final:
            return None
        return [together.effect(0) if together else None] * self.groups


def typical(seconds: Sequence[float]) -> float:
    """Return the mean seconds of a step; none counts for more than `OUTLIER` medians."""
    most = OUTLIER * median(seconds)
    return max(fmean(min(one, most) for one in seconds), _SHORTEST)


def _sign(group: int, pair: int) -> int:
    """Return an element of a column of a Hadamard matrix; columns and products of two have mean 0."""
    return 1 if ((group + 1) & pair % 4).bit_count() % 2 else -1


class _Blocks:
    """Effects that balanced blocks of pairs show, as logarithms of quotients.

    A block with a pair that was not measured is left out. ``rest`` is the logarithm of later ÷ earlier,
    regardless of movement: drift and noise. It has the same variance as the effects, so that it shows their
    error even with a single block.
    """

    def __init__(self, pooled: Sequence[float | None], groups: int) -> None:
        self.pairs = 2 if groups == 1 else 4
        complete = len(pooled) // self.pairs * self.pairs
        values = np.array(pooled[:complete], dtype=np.float64).reshape(-1, self.pairs)
        values = values[~np.isnan(values).any(1)]
        signs = [[_sign(group, pair) for pair in range(self.pairs)] for group in range(groups)]
        self.effects = values @ np.transpose(signs) / self.pairs
        self.rest = values.mean(1)

    def __len__(self) -> int:
        return len(self.rest)

    def effect(self, group: int) -> float:
        return float(np.median(self.effects[:, group]))

    def is_clear(self, group: int) -> bool:
        """Whether the effect is larger than noise alone would show."""
        count = len(self)
        if not count:
            return False
        values = self.effects[:, group]
        squares = float(np.square(values - values.mean()).sum() + np.square(self.rest).sum())
        measured = STUDENT[count - 1] * math.sqrt(squares / (2 * count - 1))
        least = CERTAIN * NOISE / math.sqrt(self.pairs)
        return abs(self.effect(group)) >= max(measured, least) / math.sqrt(count)
