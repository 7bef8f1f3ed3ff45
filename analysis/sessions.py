"""Several sessions of one environment: two compared cell by cell, and a cell's ratio over commits."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
import numpy as np

from adabench.analysis.agreement import disagreement
from adabench.analysis.compare import ALPHA, Comparison, Verdict, compare
from adabench.analysis.load import cell_labels, measured
from adabench.analysis.statistics import holm_levels
from adabench.results.record import RecordError, Run, Session


@dataclass(frozen=True)
class Change:
    """Ratio of a cell's training times in two sessions.

    `ratio` is the Hodges-Lehmann estimate over all pairs of runs, `p` is the p-value of the exact rank-sum
    test, and `level` is the level by Holm's procedure over all cells. Runs are not paired, so the ratio
    includes changes of the machine between the sessions. `reason` explains why there is no verdict on time.
    """

    usecase: str
    label: str
    before: int
    after: int
    ratio: float
    p: float
    level: float
    verdict: Verdict
    reason: str | None = None


def compare_sessions(before: Sequence[Run], after: Sequence[Run]) -> list[Change]:
    """Compare the cells that are in both sessions by `cell_identity`; sources may differ.

    Times are compared only if both sessions' runs trained on the same number of samples, and if their quality
    does not differ by more than the use case's tolerance.

    Raises
    ------
    RecordError
        If they are of different environments, or have no cell in common.
    """
    found, labels = _across_sessions([measured(before), measured(after)])
    environments = {run.environment for runs in found for run in runs}
    if len(environments) > 1:
        raise RecordError(
            "the sessions are of different environments: only sessions of one environment can be compared"
        )
    first, second = (_timed(runs) for runs in found)
    pairs = {cell: (first[cell], second[cell]) for cell in first if cell in second}
    if not pairs:
        raise RecordError(
            "the sessions have no cell in common: compare sessions with a cell of equal use case, backend, "
            "parameters, settings and data"
        )
    from scipy import stats  # Importing scipy takes longer than most commands.

    logs = [[np.log([run.seconds.train or 0.0 for run in own]) for own in pair] for pair in pairs.values()]
    p_values = [float(stats.mannwhitneyu(one, other, method="exact").pvalue) for one, other in logs]
    ratios = [math.exp(median(float(b - a) for a in one for b in other)) for one, other in logs]
    judged = zip(pairs.items(), ratios, p_values, holm_levels(p_values, ALPHA), strict=True)
    return [
        _change(labels[cell], one, other, ratio, p, level) for (cell, (one, other)), ratio, p, level in judged
    ]


@dataclass(frozen=True)
class Moment:
    """A cell's comparison with its baseline in one session."""

    session: str
    created_at: str
    commit: str
    comparison: Comparison


def history(sessions: Iterable[tuple[Session, Sequence[Run]]], baseline: str | None = None) -> list[Moment]:
    """The comparisons of all sessions that have some, the oldest first.

    Cells are distinguished by `cell_identity`, and labels by the differences among all sessions' cells.
    """
    moments = []
    known = [(session, runs) for session, runs in sessions if len({run.cell for run in measured(runs)}) > 1]
    several, labels = _across_sessions([runs for _, runs in known])
    for (session, _), runs in zip(known, several, strict=True):
        try:
            found = compare(runs, baseline, analyses=session.analyses, labels=labels)
        except RecordError:
            continue  # A session without this baseline is left out of its history.
        commit = "no clone" if session.git is None else session.git.commit[:12] + "+" * session.git.dirty
        moments += [Moment(session.session, session.created_at, commit, one) for one in found]
    return sorted(moments, key=lambda moment: moment.created_at)


def cell_identity(run: Run) -> str:
    """Return a text that is equal for runs of one cell in all sessions.

    It contains everything of the cell's identity, except sources and the policy's text.
    """
    identity = [run.usecase, run.backend, run.params, run.settings(), run.data]
    return msgspec.json.encode(identity, order="deterministic").decode()


def _across_sessions(sessions: Sequence[Sequence[Run]]) -> tuple[list[list[Run]], dict[str, str]]:
    """Runs with the identity of their cell in all sessions as `cell`, and the labels of all these cells."""
    found = [[msgspec.structs.replace(run, cell=cell_identity(run)) for run in runs] for runs in sessions]
    cells = {run.cell: run for runs in found for run in runs if run.phase == "measured"}
    labels = cell_labels(list(cells.values()))
    counts = Counter((cells[cell].usecase, label) for cell, label in labels.items())
    for cell, label in labels.items():
        if counts[cells[cell].usecase, label] > 1:
            labels[cell] = f"{label}, data {cells[cell].data}"
    return found, labels


def _timed(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs with a training time, by cell."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.seconds.train is not None:
            found.setdefault(run.cell, []).append(run)
    return found


def _change(
    label: str, before: Sequence[Run], after: Sequence[Run], ratio: float, p: float, level: float
) -> Change:
    one, reason = before[0], None
    verdict: Verdict
    if unlike := disagreement(list(zip(after, before, strict=False))):
        verdict, reason = unlike
    elif p <= level:
        verdict = "faster" if ratio < 1 else "slower"
    else:
        few = _fewest_p(len(before), len(after)) > level
        verdict = "too few runs" if few else "undecided"
    return Change(
        usecase=one.usecase,
        label=f"{label}, {one.nodes} × {one.workers}, {one.network}",
        before=len(before),
        after=len(after),
        ratio=ratio,
        p=p,
        level=level,
        verdict=verdict,
        reason=reason,
    )


def _fewest_p(one: int, other: int) -> float:
    """Return the least p-value that a number of runs can have."""
    return min(1.0, 2 / math.comb(one + other, one))
