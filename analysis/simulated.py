"""What simulated trainings cost: a table for 80 columns, and a figure against the number of nodes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

from adabench.analysis.style import SVG, palette, standalone_svg, styled
from adabench.analysis.tables import aligned

__all__ = ["FORMATS", "NodeRow", "Row", "draw_simulated", "node_table", "save_figure", "table_of"]

FORMATS = (".svg", ".png", ".pdf")
_MARKERS = "osD^vPX*<>"
_SHARES = ("compute", "visits", "rows", "network")


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


@dataclass(frozen=True)
class NodeRow:
    """A node of a simulation.

    Attributes
    ----------
    steps : int
        Of all its workers.
    seconds : float
        When they had done their last one.
    milliseconds : float
        Of a worker's step.
    shares : mapping of str to float
        As of `Row`.
    lost_at : float or None
        When the node was lost.
    peer_lost : int or None
        The lost node that ended its training.
    peer_lost_at : float or None
        When that was.
    """

    steps: int
    seconds: float
    milliseconds: float
    shares: Mapping[str, float]
    lost_at: float | None = None
    peer_lost: int | None = None
    peer_lost_at: float | None = None


def table_of(rows: Sequence[Row]) -> list[str]:
    """Lines of at most 80 columns; long names of policies end in an ellipsis."""
    heads = ("policy", "nodes", "ms/step", "compute", "visits", "rows", "network", "local", "kB/step")
    cells: list[tuple[str, ...]] = [heads]
    for row in rows:
        shares = [_percent(row.shares[name]) for name in _SHARES]
        name = row.policy if len(row.policy) <= 22 else f"{row.policy[:21]}…"
        local = "-" if math.isnan(row.local) else f"{100 * row.local:.0f} %"
        cells.append(
            (name, str(row.nodes), f"{row.milliseconds:.2f}", *shares, local, f"{row.kilobytes:,.0f}")
        )
    return aligned(cells)


def node_table(nodes: Sequence[NodeRow], named: Collection[int]) -> list[str]:
    """What nodes met: a line for each of some, one for all others, and sentences about lost nodes.

    Parameters
    ----------
    nodes : sequence of NodeRow
        All of a simulation.
    named : collection of int
        Those with lines of their own.
    """
    cells: list[tuple[str, ...]] = [("node", "steps", "seconds", "ms/step", *_SHARES)]
    cells += [_cells(str(rank), [nodes[rank]]) for rank in sorted(named)]
    others = [node for rank, node in enumerate(nodes) if rank not in named]
    if others:
        cells.append(_cells(f"{len(others)} other{'s' if len(others) > 1 else ''}", others))
    lines = aligned(cells)
    lines += [
        f"node {rank} is lost after {node.lost_at:.3f} s"
        for rank, node in enumerate(nodes)
        if node.lost_at is not None
    ]
    for peer in sorted({node.peer_lost for node in nodes if node.peer_lost is not None}):
        moments = [node.peer_lost_at for node in nodes if node.peer_lost == peer]
        count = f"{len(moments)} node{'s' if len(moments) > 1 else ''}"
        lines.append(f"PeerLost({peer}) ends {count} after {max(filter(None, moments)):.3f} s")
    return lines


def _cells(name: str, nodes: Sequence[NodeRow]) -> tuple[str, ...]:
    """The sum of steps, the latest end, and means of time and shares."""
    steps = sum(node.steps for node in nodes)
    mean = f"{sum(node.milliseconds * node.steps for node in nodes) / steps:.2f}" if steps else "-"
    shares = [_percent(sum(node.shares[what] for node in nodes) / len(nodes)) for what in _SHARES]
    return (name, f"{steps:,}", f"{max(node.seconds for node in nodes):.3f}", mean, *shares)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


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
