"""Compares the backends of a session with one of them, block by block."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from adabench.analysis.load import cell_labels, last_attempts
from adabench.analysis.statistics import fewest_blocks, holm_levels, median_interval, outliers, sign_test
from adabench.results.record import RecordError, Run

__all__ = [
    "EQUIVALENCE",
    "QUALITY_TOLERANCE",
    "Comparison",
    "Condition",
    "baseline_name",
    "compare",
    "parse_condition",
]

EQUIVALENCE = 0.03
"""Two backends whose ratio's interval lies within ± this are equivalent. Fixed in advance."""

QUALITY_TOLERANCE = 0.03
"""Times are compared only where the median quality differs by at most this part of the baseline's."""

ALPHA = 0.05

Verdict = Literal[
    "faster",
    "slower",
    "equivalent",
    "undecided",
    "too few runs",
    "quality differs",
    "not converged",
    "no runs",
]
Measure = Literal["time to target", "training time"]


@dataclass(frozen=True)
class Comparison:
    """One backend against the baseline.

    `ratio` is the median over blocks of this backend's seconds over the baseline's, below 1 where it is
    faster, with the exact interval at confidence 1 - `level`; `level` is what Holm's procedure leaves of 5
    %. `flagged` are runs far from the others of their cell, which are kept.
    """

    usecase: str
    label: str
    baseline: str
    measure: Measure
    n: int
    ratio: float
    ratio_low: float
    ratio_high: float
    p: float
    level: float
    verdict: Verdict
    flagged: tuple[str, ...] = ()


def compare(runs: Sequence[Run], baseline: str) -> list[Comparison]:
    """Every cell against the baseline's cell of its use case and topology; Holm-corrected over all of them.

    Time to the quality target is compared where the runs had a target, otherwise the time of all epochs.

    Parameters
    ----------
    runs : sequence of Run
        A session's records.
    baseline : str
        A backend's name, or a cell's whole label.

    Raises
    ------
    RecordError
        If there is no such baseline, it is ambiguous, or the runs are of several environments.
    """
    counted = [run for run in last_attempts(runs) if run.phase == "measured"]
    environments = {run.environment for run in counted}
    if len(environments) > 1:
        raise RecordError(
            f"the runs are of {len(environments)} environments: only runs of one environment can be compared"
        )
    labels = cell_labels(counted)
    pairs = []
    for usecase in dict.fromkeys(run.usecase for run in counted):
        own = {cell: label for cell, label in labels.items() if _usecase(counted, cell) == usecase}
        references = _baseline_cells(counted, own, baseline, usecase)
        pairs += [
            (usecase, _of_same_topology(counted, references, cell, baseline), cell)
            for cell in own
            if cell not in references
        ]
    drafts = [_draft(counted, labels, *pair) for pair in pairs]
    comparable = [index for index, draft in enumerate(drafts) if draft.log_ratios]
    levels = dict(zip(comparable, holm_levels([drafts[index].p for index in comparable], ALPHA), strict=True))
    return [draft.judge(levels.get(index, ALPHA)) for index, draft in enumerate(drafts)]


@dataclass(frozen=True)
class Condition:
    """What makes a comparison a regression, such as ``ratio_low > 1.03``; a bound that is undefined never
    does.
    """

    text: str
    terms: tuple[tuple[str, Callable[[float, float], bool], float], ...]

    def __call__(self, comparison: Comparison) -> bool:
        return all(holds(float(getattr(comparison, name)), bound) for name, holds, bound in self.terms)


_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_NAMES = ("ratio", "ratio_low", "ratio_high", "p", "n")


def parse_condition(text: str) -> Condition:
    """Parse comparisons of ratio, ratio_low, ratio_high, p and n with numbers, joined by ``and``.

    Raises
    ------
    RecordError
        Naming the part that is not of that form.
    """
    terms = []
    for part in text.split(" and "):
        match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*([0-9.]+(?:e-?\d+)?)\s*", part)
        if match is None or match[1] not in _NAMES:
            raise RecordError(
                f"{part.strip()!r} is not a condition: compare one of {', '.join(_NAMES)} with a number, "
                "such as ratio_low > 1.03"
            )
        terms.append((match[1], _OPERATORS[match[2]], float(match[3])))
    return Condition(text, tuple(terms))


@dataclass(frozen=True)
class _Draft:
    usecase: str
    label: str
    baseline: str
    measure: Measure
    log_ratios: tuple[float, ...]
    obstacle: Verdict | None
    flagged: tuple[str, ...]

    @property
    def p(self) -> float:
        return sign_test(self.log_ratios)

    def judge(self, level: float) -> Comparison:
        nan = math.nan
        low = ratio = high = nan
        if self.log_ratios:
            interval = median_interval(self.log_ratios, 1 - level)
            ratio, low, high = (math.exp(value) for value in (interval.median, interval.low, interval.high))
        return Comparison(
            usecase=self.usecase,
            label=self.label,
            baseline=self.baseline,
            measure=self.measure,
            n=len(self.log_ratios),
            ratio=ratio,
            ratio_low=low,
            ratio_high=high,
            p=self.p,
            level=level,
            verdict=self.obstacle or self._verdict(level, low, high),
            flagged=self.flagged,
        )

    def _verdict(self, level: float, low: float, high: float) -> Verdict:
        if len(self.log_ratios) < fewest_blocks(level):
            return "too few runs"
        # Asked first: a difference too small to matter is none, however surely it is there.
        if low >= 1 - EQUIVALENCE and high <= 1 + EQUIVALENCE:
            return "equivalent"
        if self.p <= level:
            return "faster" if median(self.log_ratios) < 0 else "slower"
        return "undecided"


def _draft(runs: Sequence[Run], labels: dict[str, str], usecase: str, reference: str, cell: str) -> _Draft:
    ours, theirs = ({run.block: run for run in runs if run.cell == one} for one in (cell, reference))
    measure: Measure = (
        "time to target" if any(run.target for run in [*ours.values(), *theirs.values()]) else "training time"
    )
    both = [(ours[block], theirs[block]) for block in sorted(ours.keys() & theirs.keys())]
    finished = [pair for pair in both if all(run.status in ("ok", "not_converged") for run in pair)]
    timed = [(_seconds(one, measure), _seconds(other, measure)) for one, other in finished]
    ratios = tuple(math.log(one / other) for one, other in timed if one is not None and other is not None)
    obstacle: Verdict | None = None
    if not finished:
        obstacle = "no runs"
    elif not _quality_agrees(finished):
        obstacle = "quality differs"
    elif len(ratios) < len(timed):
        obstacle = "not converged"
    flagged = tuple(run.run_id for found in (ours, theirs) for run in _flagged(list(found.values()), measure))
    return _Draft(usecase, labels[cell], labels[reference], measure, ratios, obstacle, flagged)


def _quality_agrees(pairs: Sequence[tuple[Run, Run]]) -> bool:
    for metric in pairs[0][1].metrics:
        ours, theirs = (median(pair[side].metrics.get(metric, math.nan) for pair in pairs) for side in (0, 1))
        if not abs(ours - theirs) <= QUALITY_TOLERANCE * abs(theirs):
            return False
    return True


def _flagged(runs: Sequence[Run], measure: Measure) -> list[Run]:
    timed = [(run, seconds) for run in runs if (seconds := _seconds(run, measure)) is not None]
    return [timed[index][0] for index in outliers([seconds for _, seconds in timed])] if timed else []


def _seconds(run: Run, measure: Measure) -> float | None:
    return run.seconds_to_target if measure == "time to target" else run.seconds.train


def _usecase(runs: Sequence[Run], cell: str) -> str:
    return next(run.usecase for run in runs if run.cell == cell)


def _baseline_cells(runs: Sequence[Run], labels: dict[str, str], baseline: str, usecase: str) -> list[str]:
    """The baseline's cells, one a topology."""
    exact = [cell for cell, label in labels.items() if label == baseline]
    found = exact or list(
        dict.fromkeys(run.cell for run in runs if run.cell in labels and run.backend == baseline)
    )
    names = ", ".join(labels.values())
    if not found:
        raise RecordError(
            f"there is no baseline {baseline!r} among the runs of {usecase!r}: there is {names}"
        )
    if len({_topology(runs, cell) for cell in found}) < len(found):
        raise RecordError(f"baseline {baseline!r} of {usecase!r} is ambiguous: name one of {names}")
    return found


def _of_same_topology(runs: Sequence[Run], references: Sequence[str], cell: str, baseline: str) -> str:
    """The baseline's cell to compare with: the only one, or that of the same nodes, workers and network."""
    if len(references) == 1:
        return references[0]
    same = [reference for reference in references if _topology(runs, reference) == _topology(runs, cell)]
    if not same:
        label = cell_labels(runs)[cell]
        raise RecordError(
            f"{label} has a topology that baseline {baseline!r} was not run with: name a cell as baseline"
        )
    return same[0]


def _topology(runs: Sequence[Run], cell: str) -> tuple[int, int, str]:
    run = next(run for run in runs if run.cell == cell)
    return (run.nodes, run.workers, run.network)


def baseline_name(comparisons: Sequence[Comparison]) -> str:
    """What to call the baseline of several comparisons: its label, or its backend where topologies differ."""
    labels = {one.baseline for one in comparisons}
    if len(labels) == 1:
        return labels.pop()
    return min(labels).partition(" (")[0]
