"""The thesis's figures: one bar chart per use case, mean bar, min/max whiskers, every run a dot."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adabench.analysis.budgets import draw_budgets
from adabench.analysis.costs import draw_costs
from adabench.analysis.life_of_keys import draw_life_of_run
from adabench.analysis.load import SUCCESS, cell_labels, last_attempts, traced_runs
from adabench.analysis.style import INK, SVG, as_svg, colours_of, in_order, styled
from adabench.analysis.sweeps import draw_sweep, swept
from adabench.analysis.thesis import draw_thesis
from adabench.results.record import RecordError, Run
from adabench.results.store import SessionStore, write_atomically

__all__ = ["draw_bars", "draw_figures"]

_DOT_STEP, _DOT_SPREAD = 0.08, 0.5
_BARS_IN_A_ROW = 6
_CAPTION = 24
"""Characters below a bar that do not run into the next bar's."""


def draw_figures(store: SessionStore) -> list[Path]:
    """Draw a session into its folder ``figures``, each as PNG and SVG: bars per use case, costs
    beside other systems', the budget of profiled steps, ratios beside the thesis's, training time over each
    parameter that was swept, and the life of keys where it was traced.

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
    """Training seconds of the cells of one use case.

    Parameters
    ----------
    runs : sequence of Run
        Measured runs of one use case, the last attempt each; failed ones are named under their bar.
    """
    labels = cell_labels(runs)
    found = {cell: [run for run in runs if run.cell == cell and run.status in SUCCESS] for cell in labels}
    order = in_order({cell: own[0] for cell, own in found.items() if own})
    done = {cell: found[cell] for cell in order}
    seconds = {cell: [run.seconds.train or 0.0 for run in own] for cell, own in done.items()}
    rows = _rows({cell: done[cell][0] for cell in order})
    backends = {own[0].backend for own in done.values()}
    colours = colours_of({backend: backend for backend in backends})
    widest = max(len(cells) for cells in rows)
    with styled():
        width, height = max(5.0, 1.7 * widest + 1.2), 0.5 + 4.1 * len(rows)
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(len(rows), 1, squeeze=False, sharey=True)[:, 0]
        for axes, cells in zip(panels, rows, strict=True):
            for index, cell in enumerate(cells):
                _bar(axes, index, seconds[cell], colours[done[cell][0].backend])
            axes.set_xticks(range(len(cells)), [_caption(labels[cell], done[cell], runs) for cell in cells])
            axes.tick_params(axis="x", labelsize=9)
            axes.set_xlim(-0.6, widest - 0.4)
            axes.grid(visible=False, axis="x")
            axes.set_ylabel("training time of a run (seconds)")
        # Once all bars are there: it fixes the upper end of every panel, too.
        panels[0].set_ylim(bottom=0)
        title = _title(runs[0].usecase, [run for own in done.values() for run in own])
        panels[0].set_title(title, fontsize=11)
        figure.supxlabel(_statement([len(values) for values in seconds.values()]), fontsize=8.5)
        sns.despine(figure, left=True)
    return figure


def _rows(cells: dict[str, Run]) -> list[list[str]]:
    """Cells in rows of a figure: all in one while they fit, else a row per topology, long ones broken."""
    if len(cells) <= _BARS_IN_A_ROW:
        return [list(cells)]
    by_topology: dict[tuple[int, int, str], list[str]] = {}
    for cell, run in cells.items():
        by_topology.setdefault((run.nodes, run.workers, run.network), []).append(cell)
    return [
        alike[start : start + _BARS_IN_A_ROW]
        for alike in by_topology.values()
        for start in range(0, len(alike), _BARS_IN_A_ROW)
    ]


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


def _bar(axes: Axes, index: int, values: Sequence[float], colour: tuple[float, float, float]) -> None:
    mean = fmean(values)
    if len(values) == 1:
        # One run has neither a mean nor a range.
        axes.scatter([index], values, s=60, color=[colour], edgecolors="black", linewidths=0.9, zorder=4)
        axes.annotate(
            f"{mean:.3g}", (index, mean), (9, 0), textcoords="offset points", va="center", fontsize=9
        )
        return
    axes.bar(index, mean, width=0.62, color=colour, alpha=0.8, zorder=2)
    whiskers = [[mean - min(values)], [max(values) - mean]]
    axes.errorbar(index, mean, yerr=whiskers, fmt="none", ecolor=INK, capsize=7, elinewidth=1.3, zorder=3)
    middle = (len(values) - 1) / 2
    step = min(_DOT_STEP, _DOT_SPREAD / len(values))
    spread = [index + step * (number - middle) for number in range(len(values))]
    axes.scatter(spread, values, s=22, color="white", edgecolors="black", linewidths=0.9, zorder=4)
    axes.annotate(
        f"{mean:.3g}", (index, 0), (0, 5), textcoords="offset points", ha="center", fontsize=9, zorder=5
    )


def _caption(label: str, done: Sequence[Run], runs: Sequence[Run]) -> str:
    backend, _, extra = label.partition(" (")
    lines = [backend, *(line for one in extra.rstrip(")").split(", ") if one for line in _broken(one))]
    metrics = done[0].metrics
    if metrics:
        metric = next(iter(metrics))
        lines.append(f"{metric} {fmean(run.metrics[metric] for run in done):.3f}")
    others = [run.status for run in runs if run.cell == done[0].cell and run.status != "ok"]
    lines += [f"{others.count(status)} {status.replace('_', ' ')}" for status in dict.fromkeys(others)]
    return "\n".join(lines)


def _broken(text: str) -> list[str]:
    """Lines that fit below a bar, broken at brackets, commas and equals signs where the text is too long."""
    lines = [""]
    for part in re.split(r"(?<=[=,])|(?=\[)", text):
        if lines[-1] and len(lines[-1]) + len(part) > _CAPTION:
            lines.append("")
        lines[-1] += part
    return lines


def _title(usecase: str, runs: Sequence[Run]) -> str:
    epochs = {run.params.get("epochs") for run in runs}
    # Backends that are always one process do not count: the title tells the topology of the others.
    distributed = {run.backend for run in runs if run.nodes * run.workers > 1}
    shapes = {
        (run.nodes, run.workers, run.network) for run in runs if run.backend in distributed or not distributed
    }
    parts = [f"{usecase}: training time"]
    if len(epochs) == 1:
        count = epochs.pop()
        parts.append(f"{count} epoch{'s' * (count != 1)}")
    if len(shapes) == 1:
        nodes, workers, network = shapes.pop()
        parts.append(f"{nodes} node{'s' * (nodes > 1)} × {workers} worker{'s' * (workers > 1)}, {network}")
    return ", ".join(parts)


def _statement(counts: Sequence[int]) -> str:
    if max(counts) == 1:
        return "dots: single runs"
    n = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return f"bar: mean of n = {n} runs; whiskers: min and max; dots: single runs"
