"""The text of ``adabench plan``."""

from collections.abc import Sequence
from pathlib import Path

from adabench.analysis.compare import blocks_needed
from adabench.analysis.load import cell_labels
from adabench.analysis.tables import fitted, needs
from adabench.harness.estimate.recorded import WIDEST, recorded_seconds, total_of
from adabench.harness.session.progress import duration
from adabench.harness.study.plan import cells_of, planned_runs, with_repeats
from adabench.harness.study.setting_parsing import SETTINGS
from adabench.harness.study.study import Study
from adabench.results.record import PlannedRun

_PREDICT = "`adabench predict` with the same options predicts times from other recorded runs"


def plan_text(study: Study, root: Path, width: int | None = None, *, verbose: bool = False) -> str:
    """The cells and the time of a study.

    Parameters
    ----------
    study : Study
        Study to describe.
    root : Path
        Folder of the sessions with the runs that give the time.
    width : int, optional
        Characters per line.
    verbose : bool
        Whether the text includes the identifiers of the cells and the order of the runs.
    """
    found = cells_of(study)
    study = with_repeats(study, found)
    planned = planned_runs(found, study)
    labels = cell_labels(planned)
    cells = {run.cell: run for run in planned if run.phase == "measured"}
    numbers = {"cell": len(cells), "block": study.repeats, "run": len(planned)}
    counts = ", ".join(f"{number} {name}{'s' * (number != 1)}" for name, number in numbers.items())
    lines = [f"study {study.name}: {', '.join([counts, *_same_for_all(planned[0])])}", ""]
    names = ["use case", "backend", "nodes x workers", "network"]
    rows = [
        [run.usecase, labels[cell], f"{run.nodes} x {run.workers}", run.network]
        for cell, run in cells.items()
    ]
    if verbose:
        names = ["", *names, "cell"]
        rows = [[f"{index + 1}", *rows[index], cell] for index, cell in enumerate(cells)]
    lines += [fitted(names, rows, width, keys=2 + verbose), ""]
    lines += _order(planned, list(cells)) if verbose else []
    lines += _estimate(planned, root)
    short = too_short(planned, study.repeats)
    lines += [] if short is None else [short]
    lines += [] if verbose else ["--verbose prints the order of the runs and the identifiers of the cells"]
    return "\n".join(lines)


def too_short(plan: Sequence[PlannedRun], blocks: int, analyses: int = 1) -> str | None:
    """Return a message if no comparison of the plan can reach a verdict with this number of blocks."""
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


def _order(planned: Sequence[PlannedRun], cells: Sequence[str]) -> list[str]:
    """A line for the runs of each use case in each block."""
    lines = []
    for block, usecase in dict.fromkeys((run.block, run.usecase) for run in planned):
        order = [run for run in planned if (run.block, run.usecase) == (block, usecase)]
        title = "warm-up" if order[0].phase == "warmup" else f"block {block + 1}"
        numbers = " ".join(f"{cells.index(run.cell) + 1}" for run in order)
        lines.append(f"{title} {usecase} (seed {order[0].seed}): {numbers}")
    return [*lines, ""]


def _estimate(planned: Sequence[PlannedRun], root: Path) -> list[str]:
    """Return the time of runs with recorded cells; no time is guessed for other runs."""
    known = recorded_seconds(planned, root)
    if not known:
        return [f"time: not known, because no run of these cells is recorded in {root}", _PREDICT]
    seconds, low, high = total_of(known.values())
    some = "" if len(known) == len(planned) else f" for {len(known)} of {len(planned)} runs"
    if high > WIDEST * low:
        lines = [
            f"time: not known{some}, because earlier runs differ too much: it may be between "
            f"{duration(low)} and {duration(high)}"
        ]
    else:
        between = f"between {duration(low)} and {duration(high)}"
        lines = [f"time: about {duration(seconds)}{some}, {between}, by earlier runs in {root}"]
    if some:
        left = len(planned) - len(known)
        lines += [f"not included: {left} run{'s' * (left > 1)} of cells that were never recorded", _PREDICT]
    return lines
