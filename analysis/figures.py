"""The thesis's figures: one bar chart per use case, mean bar, min/max whiskers, every run a dot."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adabench.analysis.baseline import shown_topology, topology
from adabench.analysis.budgets import draw_budgets
from adabench.analysis.costs import draw_costs
from adabench.analysis.life_of_keys import draw_life_of_run
from adabench.analysis.load import SUCCESS, cell_labels, last_attempts, traced_runs
from adabench.analysis.style import INK, SVG, as_svg, colours_of, decimals_of, in_order, styled
from adabench.analysis.sweeps import draw_sweep, swept
from adabench.analysis.tables import broken
from adabench.analysis.thesis import draw_thesis
from adabench.results.record import RecordError, Run
from adabench.results.store import SessionStore, write_atomically

_DOT_STEP, _DOT_SPREAD = 0.08, 0.4
_NAME = 40
"""Characters of a line of a bar's name."""


def draw_figures(store: SessionStore) -> list[Path]:
    """Draw a session into its folder ``figures``, each figure as PNG and SVG.

    The figures are: bars per use case, costs compared with other systems, the budget of profiled steps,
    ratios compared with the thesis, training time over each swept parameter, and the life of keys if it was
    traced.

    Raises
    ------
    RecordError
        If no measured run was trained to its end.
    """
    counted = [run for run in last_attempts(store.runs()) if run.phase == "measured"]
    if not any(run.status in SUCCESS for run in counted):
        raise RecordError(f"session {store.folder.name} has no finished run to draw")
    folder = store.figures()
    files = []
    traced = traced_runs(store)
    for usecase in dict.fromkeys(run.usecase for run in counted if run.status in SUCCESS):
        own = [run for run in counted if run.usecase == usecase]
        figures = {
            usecase: draw_bars(own),
            f"{usecase}-costs": draw_costs(own),
            f"{usecase}-budget": draw_budgets(own),
            f"{usecase}-thesis": draw_thesis(own),
            **{f"{usecase}-by-{name}": draw_sweep(own, name) for name in swept(own)},
            f"{usecase}-life": draw_life_of_run(store, traced[usecase]) if usecase in traced else None,
        }
        for name, figure in figures.items():
            if figure is not None:
                files += _save(figure, folder / name)
    return files


def draw_bars(runs: Sequence[Run]) -> Figure:
    """Training seconds of the cells of one use case: a horizontal bar for each, all on one axis.

    Parameters
    ----------
    runs : sequence of Run
        Measured runs of one use case, the last attempt each; failed runs are counted next to their bar.
    """
    labels = cell_labels(runs)
    found = {cell: [run for run in runs if run.cell == cell and run.status in SUCCESS] for cell in labels}
    order = in_order({cell: own[0] for cell, own in found.items() if own})
    done = {cell: found[cell] for cell in order}
    seconds = [[run.seconds.train or 0.0 for run in own] for own in done.values()]
    firsts = [own[0] for own in done.values()]
    colours = colours_of({run.backend: run.backend for run in firsts})
    decimals = decimals_of([fmean(values) for values in seconds])
    numbers = [
        f"{fmean(values):.{decimals}f} s{_details(own, runs)}"
        for values, own in zip(seconds, done.values(), strict=True)
    ]
    with styled():
        figure = Figure(figsize=(8.5, 1.3 + 0.45 * len(done)), layout="constrained")
        axes = figure.subplots()
        for row, (values, run) in enumerate(zip(seconds, firsts, strict=True)):
            _bar(axes, row, values, colours[run.backend])
        beside = axes.twinx()
        for side, texts in ((axes, _names(firsts, labels)), (beside, numbers)):
            side.set_yticks(range(len(texts)), texts)
            side.set_ylim(len(texts) - 0.4, -0.6)
            side.grid(visible=False, axis="y")
            side.tick_params(axis="y", length=0, labelsize=9)
            sns.despine(ax=side, left=True, right=True)
        axes.set_xlim(left=0)
        axes.set_xlabel("training time of a run (seconds)")
        axes.set_title(_title(firsts), fontsize=11)
        figure.supxlabel(_statement([len(values) for values in seconds]), fontsize=8.5)
    return figure


def _save(figure: Figure, stem: Path) -> list[Path]:
    raster = io.BytesIO()
    with mpl.rc_context(SVG):
        figure.savefig(raster, format="png", dpi=160)
    contents = {"png": raster.getvalue(), "svg": as_svg(figure).encode()}
    files = []
    for suffix, content in contents.items():
        file = stem.with_name(f"{stem.name}.{suffix}")
        write_atomically(file, content)
        files.append(file)
    return files


def _bar(axes: Axes, row: int, values: Sequence[float], colour: tuple[float, float, float]) -> None:
    mean = fmean(values)
    if len(values) == 1:
        # One run has neither a mean nor a range.
        axes.scatter(values, [row], s=60, color=[colour], edgecolors="black", linewidths=0.9, zorder=4)
        return
    axes.barh(row, mean, height=0.62, color=colour, alpha=0.8, zorder=2)
    whiskers = [[mean - min(values)], [max(values) - mean]]
    axes.errorbar(mean, row, xerr=whiskers, fmt="none", ecolor=INK, capsize=5, elinewidth=1.3, zorder=3)
    middle = (len(values) - 1) / 2
    step = min(_DOT_STEP, _DOT_SPREAD / len(values))
    spread = [row + step * (number - middle) for number in range(len(values))]
    axes.scatter(values, spread, s=16, color="white", edgecolors="black", linewidths=0.8, zorder=4)


def _names(runs: Sequence[Run], labels: Mapping[str, str]) -> list[str]:
    """Labels of cells, each given by one of its runs, with the topology if the cells differ in it."""
    alike = len({topology(run) for run in runs}) == 1
    names = []
    for run in runs:
        label = labels[run.cell]
        told = alike or any(f"{name}=" in label for name in ("nodes", "workers", "network", "pinned"))
        names.append("\n".join(broken(label if told else f"{label}, {shown_topology(topology(run))}", _NAME)))
    return names


def _details(done: Sequence[Run], runs: Sequence[Run]) -> str:
    """Quality of a cell's runs, and the number of its runs that did not end well."""
    parts = [f"{name} {fmean(run.metrics[name] for run in done):.3f}" for name in list(done[0].metrics)[:1]]
    others = [run.status for run in runs if run.cell == done[0].cell and run.status != "ok"]
    parts += [f"{others.count(status)} {status.replace('_', ' ')}" for status in dict.fromkeys(others)]
    return "".join(f", {part}" for part in parts)


def _title(runs: Sequence[Run]) -> str:
    """Return the common properties of all cells; `runs` has one run of each cell."""
    parts = [f"{runs[0].usecase}: training time"]
    epochs = {run.params.get("epochs") for run in runs}
    if len(epochs) == 1:
        count = epochs.pop()
        parts.append(f"{count} epoch{'s' * (count != 1)}")
    shapes = {topology(run) for run in runs}
    if len(shapes) == 1:
        parts.append(shown_topology(shapes.pop()))
    return ", ".join(parts)


def _statement(counts: Sequence[int]) -> str:
    if max(counts) == 1:
        return "dots: single runs"
    n = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return f"bar: mean of n = {n} runs; whiskers: min and max; dots: single runs"
