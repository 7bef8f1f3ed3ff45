"""Expected times of runs, from earlier runs of the same cells."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from adabench.analysis.load import SUCCESS
from adabench.results.record import PlannedRun
from adabench.results.store import readable_sessions

WIDEST = 3.0
"""Largest ratio of an interval's upper end to its lower end. A wider interval does not help to plan."""


@dataclass(frozen=True)
class Expected:
    """Expected time of a run.

    Attributes
    ----------
    seconds, low, high : float
        Seconds from launch to exit, and the interval around them. The ends are NaN if there is no interval.
    runs : int
        Number of recorded runs that the time is computed from.
    extrapolated : list of str
        Features of the run that are outside of all recorded values.
    """

    seconds: float
    low: float
    high: float
    runs: int
    extrapolated: list[str]


def recorded_seconds(planned: Sequence[PlannedRun], root: Path) -> dict[tuple[Any, ...], Expected]:
    """Return expected times of runs with recorded cells, without loading a use case.

    Returns
    -------
    dict
        Expected time of each run, by `PlannedRun.key`: the median of the recorded runs of its cell in the
        same phase, with the shortest and the longest one.
    """
    seconds: dict[tuple[str, str], list[float]] = {}
    for _, _, runs in readable_sessions(root):
        for one in runs:
            if one.status in SUCCESS:
                seconds.setdefault((one.cell, one.phase), []).append(one.seconds.total)
    own = {run.key: seconds.get((run.cell, run.phase)) for run in planned}
    return {
        key: Expected(median(several), min(several), max(several), len(several), [])
        for key, several in own.items()
        if several
    }


def total_of(expected: Iterable[Expected]) -> tuple[float, float, float]:
    """Return the sums of the seconds, the lower ends and the upper ends."""
    several = list(expected)
    return (
        sum(one.seconds for one in several),
        sum(one.low for one in several),
        sum(one.high for one in several),
    )
