"""Figures of costs against the number of nodes, from replays on simulated clusters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from adabench.analysis.style import as_svg, palette, styled

__all__ = ["TECHNIQUES", "derived", "draw_scale", "save_figures"]

TECHNIQUES = ("adaptive", "replication", "relocation", "static", "full_replication")
_MARKERS = dict(zip(TECHNIQUES, "osD^v", strict=True))

Measure = Callable[[pd.DataFrame], pd.Series]

MEASURES: dict[str, tuple[str, str, Measure]] = {
    "local_share": (
        "rows read without a message (%)",
        "linear",
        lambda f: 100 * (f["pulled_local"] + f["pulled_replica"]) / _pulled(f),
    ),
    "waited_ms": (
        "waiting in pulls and pushes (ms per step)",
        "linear",
        lambda f: f["waited_micros"] / f["node_steps"] / 1000,
    ),
    "kilobytes": (
        "sent for rows (kB per node and step)",
        "log",
        lambda f: f["bytes_rows"] / f["node_steps"] / 1000,
    ),
    "messages": (
        "messages for rows (per node and step)",
        "log",
        lambda f: f["messages_rows"] / f["node_steps"],
    ),
    "frames": ("frames (per node and step)", "log", lambda f: f["frames"] / f["node_steps"]),
    "relocations": (
        "relocations (per node and step)",
        "linear",
        lambda f: f["relocations"] / f["node_steps"],
    ),
}
"""Name -> label of the axis, its scale, and the formula over the counters."""


def derived(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of ``scale.csv`` per node and step: one column for each of `MEASURES`."""
    result = frame[["usecase", "technique", "nodes"]].copy()
    for name, (_, _, measure) in MEASURES.items():
        result[name] = measure(frame)
    return result


def draw_scale(frame: pd.DataFrame) -> Figure:
    """Every measure against the number of nodes, a line per technique.

    Parameters
    ----------
    frame : pandas.DataFrame
        Rows of ``scale.csv`` for one use case.
    """
    usecases = frame["usecase"].unique()
    if len(usecases) != 1:
        raise ValueError(f"a figure shows one use case, not {', '.join(map(str, usecases)) or 'none'}")
    values = derived(frame)
    colours = dict(zip(TECHNIQUES, palette(len(TECHNIQUES)), strict=True))
    with styled():
        figure = Figure(figsize=(10.0, 6.2), layout="constrained")
        panels = figure.subplots(2, 3).flatten()
        for axes, (name, (label, scale, _)) in zip(panels, MEASURES.items(), strict=True):
            for technique in TECHNIQUES:
                own = values[values["technique"] == technique].sort_values("nodes")
                if not own.empty:
                    axes.plot(
                        own["nodes"],
                        own[name],
                        marker=_MARKERS[technique],
                        markersize=5,
                        color=colours[technique],
                        label=technique.replace("_", " "),
                    )
            _finish(axes, label, scale, sorted(values["nodes"].unique()))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        sns.despine(figure, left=True)
    return figure


def save_figures(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Write a figure per use case as SVG, named after it."""
    files = []
    for usecase in frame["usecase"].unique():
        file = folder / f"{usecase}.svg"
        file.write_text(as_svg(draw_scale(frame[frame["usecase"] == usecase])), encoding="utf-8")
        files.append(file)
    return files


def _finish(axes: Axes, label: str, scale: str, nodes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(nodes, [str(count) for count in nodes])
    axes.set_yscale(scale)
    if scale == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if scale == "linear":
        axes.set_ylim(bottom=0)
    axes.set_title(label, fontsize=9.5, loc="left")
    axes.set_xlabel("nodes")
    axes.grid(visible=False, which="minor")


def _pulled(frame: pd.DataFrame) -> pd.Series:
    return frame["pulled_local"] + frame["pulled_replica"] + frame["pulled_remote"]
