"""Several sessions of one environment: two compared cell by cell, and a cell's ratio over commits."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from adabench.analysis.compare import ALPHA, Comparison, compare
from adabench.analysis.load import cell_labels, measured
from adabench.analysis.statistics import holm_levels
from adabench.results.record import RecordError, Run, Session


@dataclass(frozen=True)
class Change:
    """Ratio of a cell's training times in two sessions.

    `ratio` is the Hodges-Lehmann estimate over all pairs of runs, `p` is the p-value of the exact rank-sum
    test, and `level` is the level by Holm's procedure over all cells. Runs are not paired, so the ratio
    includes changes of the machine between the sessions.
    """

    usecase: str
    label: str
    before: int
    after: int
    ratio: float
    p: float
    level: float

    @property
    def verdict(self) -> str:
        if self.p <= self.level:
            return "faster" if self.ratio < 1 else "slower"
        return "undecided" if _fewest_p(self.before, self.after) <= self.level else "too few runs"


def compare_sessions(before: Sequence[Run], after: Sequence[Run]) -> list[Change]:
    """Compare all cells with equal use case, label and topology in both sessions; sources may differ.

    Raises
    ------
    RecordError
        If they are of different environments, or have no cell in common.
    """
    environments = {run.environment for run in [*measured(before), *measured(after)]}
    if len(environments) > 1:
        raise RecordError(
            "the sessions are of different environments: only sessions of one environment can be compared"
        )
    first, second = _seconds(before), _seconds(after)
    names = [name for name in first if name in second]
    if not names:
        raise RecordError("the sessions have no cell in common: there is nothing to compare")
    from scipy import stats  # Importing scipy takes longer than most commands.

    logs = [(np.log(first[name]), np.log(second[name])) for name in names]
    p_values = [float(stats.mannwhitneyu(one, other, method="exact").pvalue) for one, other in logs]
    judged = zip(names, logs, p_values, holm_levels(p_values, ALPHA), strict=True)
    return [
        Change(
            usecase=name[0],
            label=name[1],
            before=len(one),
            after=len(other),
            ratio=math.exp(median(float(b - a) for a in one for b in other)),
            p=p,
            level=level,
        )
        for name, (one, other), p, level in judged
    ]


@dataclass(frozen=True)
class Moment:
    """A cell's comparison with its baseline in one session."""

    session: str
    created_at: str
    commit: str
    comparison: Comparison


def history(sessions: Iterable[tuple[Session, Sequence[Run]]], baseline: str | None = None) -> list[Moment]:
    """The comparisons of all sessions that have some, the oldest first."""
    moments = []
    for session, runs in sessions:
        if len({run.cell for run in measured(runs)}) < 2:
            continue
        try:
            found = compare(runs, baseline, analyses=session.analyses)
        except RecordError:
            continue  # A session without this baseline is left out of its history.
        commit = "no clone" if session.git is None else session.git.commit[:12] + "+" * session.git.dirty
        moments += [Moment(session.session, session.created_at, commit, one) for one in found]
    return sorted(moments, key=lambda moment: moment.created_at)


def _seconds(runs: Sequence[Run]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    done = measured(runs)
    labels = cell_labels(done)
    for run in done:
        if run.seconds.train is not None:
            where = f"{run.nodes} × {run.workers}, {run.network}"
            found.setdefault((run.usecase, f"{labels[run.cell]}, {where}"), []).append(run.seconds.train)
    return found


def _fewest_p(one: int, other: int) -> float:
    """Return the least p-value that a number of runs can have."""
    return min(1.0, 2 / math.comb(one + other, one))
