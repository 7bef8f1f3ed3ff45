"""The text of ``adabench plan``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adabench.analysis.compare import blocks_needed
from adabench.analysis.load import cell_labels
from adabench.analysis.tables import fitted, needs
from adabench.harness.estimate.predict import expected_seconds
from adabench.harness.session.progress import duration
from adabench.harness.study.plan import cells_of, planned_runs, with_repeats
from adabench.harness.study.setting_parsing import SETTINGS
from adabench.harness.study.study import Study
from adabench.results.record import PlannedRun

__all__ = ["plan_text", "too_short"]


def plan_text(study: Study, root: Path, width: int | None = None) -> str:
    """Cells, order and time of a study; earlier sessions in `root` give the time, and lines have `width`
    characters.
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
    lines += ["", *_estimate(planned, root, study)]
    short = too_short(planned, study.repeats)
    return "\n".join(lines if short is None else [*lines, short])


def too_short(plan: Sequence[PlannedRun], blocks: int, analyses: int = 1) -> str | None:
    """A sentence if no comparison of the plan can reach a verdict with so many blocks."""
    needed, comparisons = blocks_needed(plan, analyses)
    if comparisons == 0 or blocks >= needed:
        return None
    return f"no verdict can be reached with {blocks} block{'s' * (blocks > 1)}: {needs(needed, comparisons)}"


def _same_for_all(run: PlannedRun) -> list[str]:
    """Settings that all runs of a study share, in words; defaults are left out."""
    return [
        name if value is True else f"{name} {value}"
        for name, value in run.settings().items()
        if not SETTINGS[name].about.several and value != SETTINGS[name].default
    ]


def _estimate(planned: Sequence[PlannedRun], root: Path, study: Study) -> list[str]:
    found, learned = expected_seconds(planned, root, study.data)
    if len(found) < len(planned):
        unlike = f"{len(planned) - len(found)} of {len(planned)} runs"
        return [f"time: not known; {unlike} are like nothing recorded in {root}"]
    about = f"time: about {duration(sum(one.seconds for one in found.values()))}"
    if not learned:
        return [f"{about}, by earlier runs in {root}"]
    low, high = (duration(sum(getattr(one, end) for one in found.values())) for end in ("low", "high"))
    lines = [f"{about}, between {low} and {high}, predicted by {learned} runs in {root}"]
    texts = sorted({text for one in found.values() for text in one.extrapolated})
    return [*lines, f"unlike those: {'; '.join(texts)}"] if texts else lines
