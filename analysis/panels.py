"""Further figures of a report: ratios, quality against time, phases, parameter server counters."""

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adabench.analysis.compare import EQUIVALENCE, Comparison
from adabench.analysis.load import SUCCESS, cell_labels
from adabench.analysis.style import colours_of, in_order, palette, styled
from adabench.results.record import Run

PHASES = ("setup", "train", "eval", "teardown")

# Counters to sum, counters to divide by (if any), the axis's label, and its scale.
PULLED = ("pulled_local", "pulled_replica", "pulled_remote")
READ = ("rows_read_ahead", "rows_read_on_demand")
SERVER_PANELS: tuple[tuple[tuple[str, ...], tuple[str, ...], str, float], ...] = (
    (PULLED[:2], PULLED, "pulled keys that were local, owned or a replica (%)", 100.0),
    (("bytes_sent",), (), "sent (MB)", 1e-6),
    (("relocations",), (), "relocations (thousand)", 1e-3),
    (("replicas",), (), "replicas set up (thousand)", 1e-3),
    (("lead_micros",), ("lead_keys",), "time from intent until the row is local, mean (ms)", 1e-3),
    (("staleness_micros",), ("staleness_reads",), "age of values read from replicas, mean (ms)", 1e-3),
    (("blocked_micros",), (), "time that workers were blocked (s)", 1e-6),
    (("ids_assigned",), (), "ids with a row at the end (thousand)", 1e-3),
    (("ids_retired",), (), "rows that were given to other ids (thousand)", 1e-3),
    (("ids_not_admitted",), (), "requests of ids that got no row (thousand)", 1e-3),
    (("rows_stored",), (), "rows in files at the end (thousand)", 1e-3),
    (("rows_written",), (), "rows written to files (thousand)", 1e-3),
    (READ[:1], READ, "rows read from files that were read ahead of their use (%)", 100.0),
    (READ[1:], (), "rows read from files when they were used (thousand)", 1e-3),
)


def draw_forest(comparisons: Sequence[Comparison]) -> Figure:
    """Draw each ratio to the baseline with its exact interval, also in numbers on the right.

    The grey band contains ratios that count as equivalent.
    """
    with styled():
        figure = Figure(figsize=(8.5, 0.9 + 0.42 * len(comparisons)), layout="constrained")
        axes = figure.subplots()
        axes.axvspan(1 - EQUIVALENCE, 1 + EQUIVALENCE, color="#888888", alpha=0.2, linewidth=0)
        axes.axvline(1, color="#888888", linewidth=1)
        names = [one.label for one in comparisons]
        for row, one in enumerate(comparisons):
            if not math.isnan(one.ratio_low):
                axes.plot([one.ratio_low, one.ratio_high], [row, row], color="#4878d0", linewidth=2)
            axes.plot(one.ratio, row, "o", color="#4878d0", markersize=7)
        numbers = axes.twinx()
        for side, texts in ((axes, names), (numbers, [_in_numbers(one) for one in comparisons])):
            side.set_yticks(range(len(names)), texts)
            side.set_ylim(len(names) - 0.5, -0.5)
            side.grid(visible=False, axis="y")
            side.tick_params(axis="y", length=0)
            sns.despine(ax=side, left=True, right=True)
        axes.set_xlabel(f"{comparisons[0].measure} over {_named(comparisons)}'s (below 1: faster)")
    return figure


def _in_numbers(one: Comparison) -> str:
    if math.isnan(one.ratio_low):
        return one.verdict if math.isnan(one.ratio) else f"{one.ratio:.3f}  {one.verdict}"
    return f"{one.ratio:.3f} [{one.ratio_low:.3f}, {one.ratio_high:.3f}]  {one.verdict}"


def _named(comparisons: Sequence[Comparison]) -> str:
    """Return the baseline's label, or its backend's name if it has one cell per topology."""
    labels = {one.baseline for one in comparisons}
    return labels.pop() if len(labels) == 1 else min(labels).partition(" (")[0]


def draw_quality(runs: Sequence[Run], metric: str) -> Figure:
    """Draw quality after each epoch against training seconds, as thin lines per run and cell medians."""
    done, labels, colours = _cells(runs)
    with styled():
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        axes = figure.subplots()
        for cell, own in done.items():
            curves = [
                (list(accumulate(run.epoch_seconds)), [entry[metric] for entry in run.history]) for run in own
            ]
            for seconds, values in curves:
                axes.plot(seconds, values, color=colours[cell], linewidth=0.8, alpha=0.4)
            reached = [(sum(run.epoch_seconds[: run.best_epoch]), run) for run in own if run.best_epoch]
            best = [(seconds, run.metrics[metric]) for seconds, run in reached if metric in run.metrics]
            if best:
                axes.plot(*zip(*best, strict=True), "*", color=colours[cell], markersize=9, zorder=4)
            middle = [
                [median(points) for points in zip(*part, strict=False)] for part in zip(*curves, strict=True)
            ]
            axes.plot(*middle, "o-", color=colours[cell], linewidth=2, markersize=4, label=labels[cell])
        targets = {run.target[metric] for run in runs if run.target and metric in run.target}
        for target in targets:
            axes.axhline(target, color="#888888", linestyle="--", linewidth=1)
        axes.set_xlim(left=0)
        axes.set_xlabel("training time (seconds)")
        axes.set_ylabel(f"test {metric}")
        _legend(axes)
    return figure


def draw_phases(runs: Sequence[Run]) -> Figure:
    """Draw the mean seconds of a run by phase, stacked, in a row per cell."""
    done, labels, _ = _cells(runs)
    with styled():
        figure = Figure(figsize=(7.0, 1.5 + 0.42 * len(done)), layout="constrained")
        axes = figure.subplots()
        for row, own in enumerate(done.values()):
            left = 0.0
            for phase, colour in zip(PHASES, palette(len(PHASES)), strict=True):
                seconds = fmean(getattr(run.seconds, phase) or 0.0 for run in own)
                axes.barh(
                    row, seconds, left=left, height=0.6, color=colour, label=phase if row == 0 else None
                )
                left += seconds
        axes.set_yticks(range(len(done)), [labels[cell] for cell in done])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("mean wall time of a run (seconds)")
        _legend(axes)
    return figure


def draw_server(runs: Sequence[Run]) -> Figure | None:
    """Draw a panel per counter of the parameter server; None if no run used the server."""
    done, labels, colours = _cells([run for run in runs if run.counters])
    panels = [
        panel
        for panel in SERVER_PANELS
        if any(_counter(run, *panel[:2]) for own in done.values() for run in own)
    ]
    if not panels:
        return None
    with styled():
        figure = Figure(
            figsize=(7.0, 0.9 * len(panels) + 0.34 * len(done) * len(panels)), layout="constrained"
        )
        grid = figure.subplots(len(panels), 1, squeeze=False)
        for axes, (names, per, title, scale) in zip(grid[:, 0], panels, strict=True):
            for row, (cell, own) in enumerate(done.items()):
                values = [value * scale for run in own if (value := _counter(run, names, per)) is not None]
                if values:
                    axes.barh(row, fmean(values), height=0.6, color=colours[cell])
                    axes.plot(
                        values, [row] * len(values), "o", color="white", markeredgecolor="black", markersize=4
                    )
            axes.set_yticks(range(len(done)), [labels[cell] for cell in done], fontsize=8.5)
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")
            axes.set_title(title, fontsize=9.5, loc="left")
            axes.set_xlim(left=0)
    return figure


def _counter(run: Run, names: tuple[str, ...], per: tuple[str, ...]) -> float | None:
    total, whole = (sum(run.counters.get(name, 0.0) for name in some) for some in (names, per))
    if not set(names) & set(run.counters) or (per and not whole):
        return None
    return total / whole if per else total


def _cells(
    runs: Sequence[Run],
) -> tuple[dict[str, list[Run]], dict[str, str], dict[str, tuple[float, float, float]]]:
    """Finished runs by cell, the cells' labels and colours."""
    done: dict[str, list[Run]] = {}
    for run in runs:
        if run.status in SUCCESS:
            done.setdefault(run.cell, []).append(run)
    labels = cell_labels(runs)
    ordered = {
        cell: done[cell] for cell in in_order({cell: done[cell][0] for cell in labels if cell in done})
    }
    return ordered, labels, colours_of({cell: own[0].backend for cell, own in ordered.items()})


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=8.5, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
