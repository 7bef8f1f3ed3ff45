"""Compares the backends of a session with one of them, block by block."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from adabench.analysis.agreement import disagreement
from adabench.analysis.baseline import Baseline, across_topologies, shown_topology, topology
from adabench.analysis.load import cell_labels, last_attempts
from adabench.analysis.statistics import (
    fewest_blocks,
    holm_levels,
    outliers,
    paired_interval,
    signed_rank_test,
)
from adabench.results.record import PlannedRun, RecordError, Run

EQUIVALENCE = 0.03
"""Two backends whose ratio's interval lies within ± this are equivalent. Fixed in advance."""

ALPHA = 0.05
"""Maximum fraction of sessions without differences that have a verdict of a difference."""

Verdict = Literal[
    "faster",
    "slower",
    "equivalent",
    "undecided",
    "too few runs",
    "quality differs",
    "work differs",
    "not converged",
    "no runs",
]
Measure = Literal["time to target", "training time"]

UNJUDGED: tuple[Verdict, ...] = (
    "too few runs",
    "quality differs",
    "work differs",
    "not converged",
    "no runs",
)
"""Verdicts without a statement about time."""


@dataclass(frozen=True)
class Comparison:
    """One cell against the baseline's.

    `cell` is its identifier. `label` is unique among all cells of its use case, `name` among the cells of the
    same `topology`. `ratio` is the Hodges-Lehmann estimate, over blocks, of this cell's seconds over the
    baseline's, below 1 where it is faster, with the exact interval at confidence 1 - `level`; `level` is what
    Holm's procedure leaves of `ALPHA` for all comparisons of the session together. `n` blocks count; `needed`
    is how many a verdict takes. `reason` explains why there is no verdict on time. `flagged` are runs far
    from the others of their cell, which are kept.
    """

    cell: str
    usecase: str
    topology: str
    label: str
    name: str
    baseline: str
    measure: Measure
    n: int
    needed: int
    ratio: float
    ratio_low: float
    ratio_high: float
    p: float
    level: float
    verdict: Verdict
    reason: str | None = None
    flagged: tuple[str, ...] = ()


def compare(
    runs: Sequence[Run],
    baseline: str | None = None,
    *,
    analyses: int = 1,
    labels: Mapping[str, str] | None = None,
) -> list[Comparison]:
    """Compare every cell with the baseline's cell of its use case and topology; Holm-corrected over all.

    If the runs had a quality target, the time to the target is compared, otherwise the time of all epochs.
    Times are compared only if both cells trained on the same number of samples, and if their quality does not
    differ by more than the use case's tolerance.

    Parameters
    ----------
    runs : sequence of Run
        Records of a session.
    baseline : str, optional
        Name of a backend, such as ``prefetch``, with some of its parameters, such as
        ``prefetch[lookahead=20]``, or the whole label of a cell. The default is documented in
        `baseline.Baseline`. If the baseline was not run on a cell's topology, the cell is compared with the
        baseline's only cell, and its label shows this.
    analyses : int
        Number of times that the session is judged until it is long enough; see `statistics.interim_analyses`.
    labels : mapping of str to str, optional
        Labels of the cells. By default, labels distinguish the cells of `runs` from each other.

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
    drafts = _drafts(counted, baseline, labels or cell_labels(counted))
    alpha = ALPHA / analyses
    comparable = [index for index, (draft, _) in enumerate(drafts) if draft.n]
    found = holm_levels([drafts[index][0].p for index in comparable], alpha)
    levels = dict(zip(comparable, found, strict=True))
    needed = fewest_blocks(alpha / max(len(comparable), 1))
    return [_judged(*draft, levels.get(index, alpha), needed) for index, draft in enumerate(drafts)]


def compared_cells(
    runs: Sequence[Run] | Sequence[PlannedRun],
    baseline: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return cell -> the baseline's cell for its comparison.

    `baseline` and `labels` are as in `compare`. Raises `RecordError` if there is no such baseline, it is
    ambiguous, or it has several cells and none of a cell's topology.
    """
    cells = {run.cell: run for run in runs if run.phase == "measured"}
    labels = labels or cell_labels(runs)
    pairs = {}
    for usecase in dict.fromkeys(run.usecase for run in cells.values()):
        own = {cell: run for cell, run in cells.items() if run.usecase == usecase}
        chosen = Baseline(own, labels, baseline, usecase)
        pairs.update({cell: chosen.beside(cell) for cell in own if cell not in chosen.cells})
    return pairs


def blocks_advised(plan: Sequence[PlannedRun] | Sequence[Run]) -> int:
    """Return the number of blocks that detects a difference of 5 % in 80 % of sessions, at a scatter of 3 %.

    The number is twice the minimum for a verdict, less three, by simulations of one to twenty comparisons
    (docs/concepts/statistics.md). It is six if there is nothing to compare.
    """
    needed, comparisons = blocks_needed(plan)
    return 2 * needed - 3 if comparisons else 6


def blocks_needed(plan: Sequence[PlannedRun] | Sequence[Run], analyses: int = 1) -> tuple[int, int]:
    """Return the minimum number of blocks for the verdicts of a plan, and the number of comparisons.

    The comparisons use the default baseline, or one cell per use case and topology if it is ambiguous.
    """
    cells = {run.cell: run for run in plan if run.phase == "measured"}
    labels = cell_labels(plan)
    comparisons = 0
    for usecase in dict.fromkeys(run.usecase for run in cells.values()):
        own = {cell: run for cell, run in cells.items() if run.usecase == usecase}
        try:
            references = len(Baseline(own, labels, None, usecase).cells)
        except RecordError:
            references = len({topology(run) for run in own.values()})
        comparisons += len(own) - references
    return fewest_blocks(ALPHA / analyses / max(comparisons, 1)), comparisons


def _judged(draft: Comparison, log_ratios: Sequence[float], level: float, needed: int) -> Comparison:
    """The comparison with its interval and verdict, which depend on all comparisons of its family."""
    draft = replace(draft, level=level, needed=needed)
    if log_ratios:
        interval = paired_interval(log_ratios, 1 - level)
        ratio, low, high = (math.exp(value) for value in (interval.median, interval.low, interval.high))
        draft = replace(draft, ratio=ratio, ratio_low=low, ratio_high=high)
    if draft.verdict != "undecided":
        return draft
    if draft.n < fewest_blocks(level):
        reason = f"{draft.n} blocks count, a verdict needs {needed}"
        return replace(draft, verdict="too few runs", reason=reason)
    # This check comes first: a difference that is too small to matter is never a difference in the verdict.
    if draft.ratio_low >= 1 - EQUIVALENCE and draft.ratio_high <= 1 + EQUIVALENCE:
        return replace(draft, verdict="equivalent")
    if draft.p <= level:
        return replace(draft, verdict="faster" if draft.ratio < 1 else "slower")
    return draft


def _drafts(
    counted: Sequence[Run], baseline: str | None, labels: Mapping[str, str]
) -> list[tuple[Comparison, tuple[float, ...]]]:
    """Comparisons without their verdicts, and the logarithms of their ratios."""
    by_cell: dict[str, list[Run]] = {}
    for run in counted:
        by_cell.setdefault(run.cell, []).append(run)
    names = cell_labels(counted, topology=False)
    pairs = compared_cells(counted, baseline, labels)
    usecases = list(dict.fromkeys(run.usecase for run in counted))

    def place(cell: str) -> tuple[object, ...]:
        run = by_cell[cell][0]
        return usecases.index(run.usecase), topology(run), labels[cell]

    return [_draft(labels, names, by_cell[cell], by_cell[pairs[cell]]) for cell in sorted(pairs, key=place)]


def _draft(
    labels: Mapping[str, str], names: Mapping[str, str], own: Sequence[Run], reference: Sequence[Run]
) -> tuple[Comparison, tuple[float, ...]]:
    ours, theirs = ({run.block: run for run in some} for some in (own, reference))
    measure: Measure = "time to target" if any(run.target for run in [*own, *reference]) else "training time"
    both = [(ours[block], theirs[block]) for block in sorted(ours.keys() & theirs.keys())]
    finished = [pair for pair in both if all(run.status in ("ok", "not_converged") for run in pair)]
    timed = [(_seconds(one, measure), _seconds(other, measure)) for one, other in finished]
    ratios = tuple(math.log(one / other) for one, other in timed if one is not None and other is not None)
    verdict: Verdict = "undecided"
    reason: str | None = None
    if not finished:
        verdict, reason = "no runs", _why_nothing([*own, *reference])
    elif found := disagreement(finished):
        verdict, reason = found
    elif len(ratios) < len(timed):
        missed = len(timed) - len(ratios)
        verdict, reason = (
            "not converged",
            f"in {missed} of {len(timed)} blocks a run did not reach the target",
        )
    here, there = topology(own[0]), topology(reference[0])
    across = "" if here == there else f", {across_topologies(here, there)}"
    draft = Comparison(
        cell=own[0].cell,
        usecase=own[0].usecase,
        topology=shown_topology(there),
        label=labels[own[0].cell] + across,
        name=names[own[0].cell] + across,
        baseline=labels[reference[0].cell],
        measure=measure,
        n=len(ratios),
        needed=0,
        ratio=math.nan,
        ratio_low=math.nan,
        ratio_high=math.nan,
        p=signed_rank_test(ratios) if ratios else 1.0,
        level=ALPHA,
        verdict=verdict,
        reason=reason,
        flagged=tuple(run.run_id for some in (own, reference) for run in _flagged(some, measure)),
    )
    return draft, ratios


def _why_nothing(runs: Sequence[Run]) -> str:
    said = [run.reason for run in runs if run.status not in ("ok", "not_converged") and run.reason]
    return said[0] if said else "no block has both runs"


def _flagged(runs: Sequence[Run], measure: Measure) -> list[Run]:
    timed = [(run, math.log(seconds)) for run in runs if (seconds := _seconds(run, measure))]
    return [timed[index][0] for index in outliers([seconds for _, seconds in timed])]


def _seconds(run: Run, measure: Measure) -> float | None:
    return run.seconds_to_target if measure == "time to target" else run.seconds.train
