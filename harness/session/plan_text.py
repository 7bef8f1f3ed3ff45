"""What ``adabench plan`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from adabench.analysis.compare import blocks_needed
from adabench.analysis.load import SUCCESS, cell_labels
from adabench.analysis.tables import fitted, needs
from adabench.harness.planning.plan import cells_of, planned_runs, with_repeats
from adabench.harness.planning.settings import SETTINGS
from adabench.harness.planning.study import Study
from adabench.harness.session.progress import duration
from adabench.results.record import PlannedRun, Run
from adabench.results.store import readable_sessions

__all__ = ["plan_text", "too_short"]


def plan_text(study: Study, root: Path, width: int | None = None) -> str:
    """Cells, order and time of a study.

    Parameters
    ----------
    study : Study
    root : Path
        Where earlier sessions are, which the estimate of the time comes from.
    width : int, optional
        Characters per line.
    """
    found = cells_of(study)
    study = with_repeats(study, found)
    planned = planned_runs(found, study)
    labels = cell_labels(planned)
    cells = {run.cell: run for run in planned if run.phase == "measured"}
    names = {cell: f"{index + 1}" for index, cell in enumerate(cells)}
    rows = [
        [names[cell], run.usecase, labels[cell], f"{run.nodes} x {run.workers}", run.network, cell]
        for cell, run in cells.items()
    ]
    counts = f"{len(cells)} cells, {study.repeats} blocks, {len(planned)} runs"
    lines = [f"study {study.name}: {', '.join([counts, *_same_for_all(planned[0])])}", ""]
    lines += [fitted(["", "use case", "backend", "nodes x workers", "network", "cell"], rows, width), ""]
    for block, usecase in dict.fromkeys((run.block, run.usecase) for run in planned):
        order = [run for run in planned if (run.block, run.usecase) == (block, usecase)]
        title = "warm-up" if order[0].phase == "warmup" else f"block {block + 1}"
        lines.append(
            f"{title} {usecase} (seed {order[0].seed}): " + " ".join(names[run.cell] for run in order)
        )
    lines += ["", _estimate(planned, root)]
    short = too_short(planned, study.repeats)
    return "\n".join(lines if short is None else [*lines, short])


def too_short(plan: Sequence[PlannedRun], blocks: int, looks: int = 1) -> str | None:
    """A sentence, if no comparison of the plan can come to a verdict with so many blocks."""
    needed, comparisons = blocks_needed(plan, looks)
    if comparisons == 0 or blocks >= needed:
        return None
    return f"no verdict can be reached with {blocks} block{'s' * (blocks > 1)}: {needs(needed, comparisons)}"


def _same_for_all(run: PlannedRun) -> list[str]:
    """Settings that all runs of a study have alike, in words; defaults are left out."""
    return [
        name if value is True else f"{name} {value}"
        for name, value in run.settings().items()
        if not SETTINGS[name].about.several and value != SETTINGS[name].default
    ]


def _estimate(planned: Sequence[PlannedRun], root: Path) -> str:
    earlier = [run for _, _, runs in readable_sessions(root) for run in runs if run.status in SUCCESS]
    expected = [_expected(run, earlier) for run in planned]
    known = [seconds for seconds in expected if seconds is not None]
    if len(known) < len(planned):
        unlike = f"{len(planned) - len(known)} of {len(planned)} runs"
        return f"time: not known; {unlike} are like nothing recorded in {root}"
    return f"time: about {duration(sum(known))}, by earlier runs in {root}"


def _expected(planned: PlannedRun, earlier: Sequence[Run]) -> float | None:
    """The median of the same cell, else of the same pair and epochs."""
    same = [run for run in earlier if (run.cell, run.phase) == (planned.cell, planned.phase)]
    alike = [
        run
        for run in earlier
        if (run.usecase, run.backend, run.phase) == (planned.usecase, planned.backend, planned.phase)
        and run.params.get("epochs") == planned.params["epochs"]
    ]
    found = same or alike
    return median(run.seconds.total for run in found) if found else None
