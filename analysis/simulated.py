"""What simulated trainings cost: a table for 80 columns, and a figure against the number of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

from adabench.analysis.style import SVG, palette, standalone_svg, styled

__all__ = ["FORMATS", "Row", "draw_simulated", "save_figure", "table_of"]

FORMATS = (".svg", ".png", ".pdf")
_MARKERS = "osD^vPX*<>"


@dataclass(frozen=True)
class Row:
    """One simulation.

    Attributes
    ----------
    policy : str
        As it was asked for.
    nodes : int
    milliseconds : float
        Of a worker's step.
    shares : mapping of str to float
        Where its time goes: ``compute``, ``visits`` of rows that are here, waiting for ``rows`` that other
        nodes work at, and for the ``network``; they add up to 1.
    local : float
        The part of the rows that are read without a message; NaN if none is read.
    kilobytes, messages : float
        That a node sends per step of a worker.
    """

    policy: str
    nodes: int
    milliseconds: float
    shares: Mapping[str, float]
    local: float
    kilobytes: float
    messages: float


def table_of(rows: Sequence[Row]) -> list[str]:
    """Lines of at most 80 columns; long names of policies end in an ellipsis."""
    heads = ("policy", "nodes", "ms/step", "compute", "visits", "rows", "network", "local", "kB/step")
    cells: list[tuple[str, ...]] = [heads]
    for row in rows:
        shares = [f"{100 * row.shares[name]:.0f} %" for name in ("compute", "visits", "rows", "network")]
        name = row.policy if len(row.policy) <= 22 else f"{row.policy[:21]}…"
        local = "-" if math.isnan(row.local) else f"{100 * row.local:.0f} %"
        cells.append(
            (name, str(row.nodes), f"{row.milliseconds:.2f}", *shares, local, f"{row.kilobytes:,.0f}")
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        " ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def draw_simulated(rows: Sequence[Row]) -> Figure:
    """Time and bytes of a step against the number of nodes, a line per policy."""
    policies = list(dict.fromkeys(row.policy for row in rows))
    colours = palette(len(policies))
    counts = sorted({row.nodes for row in rows})
    with styled():
        figure = Figure(figsize=(8.0, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for number, policy in enumerate(policies):
            own = sorted((row for row in rows if row.policy == policy), key=lambda row: row.nodes)
            look = {
                "color": colours[number],
                "marker": _MARKERS[number % len(_MARKERS)],
                "markersize": 5,
                "label": policy,
            }
            nodes = [row.nodes for row in own]
            left.plot(nodes, [row.milliseconds for row in own], **look)
            right.plot(nodes, [row.kilobytes for row in own], **look)
        for axes, title in ((left, "time of a step (ms)"), (right, "sent per node and step (kB)")):
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.set_ylim(bottom=0)
            axes.set_title(title, fontsize=9.5, loc="left")
            axes.set_xlabel("nodes")
            axes.grid(visible=False, which="minor")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5), frameon=False)
        sns.despine(figure, left=True)
    return figure


def save_figure(figure: Figure, file: Path) -> None:
    """Write it; an SVG shows on a light and on a dark page."""
    if file.suffix == ".svg":
        file.write_text(standalone_svg(figure), encoding="utf-8")
        return
    with mpl.rc_context(SVG):
        figure.savefig(file, dpi=150)
