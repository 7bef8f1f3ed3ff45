"""Results of simulations: a table for 80 columns, and a figure against the number of nodes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

from adabench.analysis.style import SVG, palette, standalone_svg, styled
from adabench.analysis.tables import aligned
from adaps.simulation import Simulation

__all__ = ["FORMATS", "draw_simulated", "node_table", "save_figure", "table_of"]

FORMATS = (".svg", ".png", ".pdf")
_MARKERS = "osD^vPX*<>"
_SHARES = ("compute", "visits", "rows", "network")
"""Keys of `Simulation.shares`, in the order of columns."""

Simulated = tuple[str, Simulation]
"""A policy as it was requested, and its simulation."""


def table_of(found: Sequence[Simulated]) -> list[str]:
    """Lines of at most 80 columns; long names of policies end in an ellipsis."""
    cells: list[tuple[str, ...]] = [("policy", "nodes", "ms/step", *_SHARES, "local", "kB/step")]
    for policy, one in found:
        name = policy if len(policy) <= 22 else f"{policy[:21]}…"
        shares = [_percent(one.shares()[share]) for share in _SHARES]
        local = "-" if math.isnan(one.local_share()) else f"{100 * one.local_share():.0f} %"
        step, sent = f"{1e3 * one.seconds_per_step:.2f}", f"{1e-3 * one.bytes_per_step:,.0f}"
        cells.append((name, str(len(one.nodes)), step, *shares, local, sent))
    return aligned(cells)


def node_table(found: Simulation, named: Collection[int]) -> list[str]:
    """A line for each of some nodes, one for all others, and sentences about lost nodes.

    Parameters
    ----------
    found : Simulation
        Result of the simulation.
    named : collection of int
        Nodes that get separate lines.
    """
    nodes = found.nodes
    cells: list[tuple[str, ...]] = [("node", "steps", "seconds", "ms/step", *_SHARES)]
    groups = [(str(rank), [rank]) for rank in sorted(named)]
    others = [rank for rank in range(len(nodes)) if rank not in named]
    if others:
        groups.append((f"{len(others)} other{'s' if len(others) > 1 else ''}", others))
    for name, ranks in groups:
        steps = sum(nodes[rank].steps for rank in ranks)
        last = max(nodes[rank].seconds for rank in ranks)
        worked = 1e3 * found.workers * sum(nodes[rank].seconds for rank in ranks if nodes[rank].steps)
        shares = [sum(nodes[rank].shares()[share] for rank in ranks) / len(ranks) for share in _SHARES]
        step = f"{worked / steps:.2f}" if steps else "-"
        cells.append((name, f"{steps:,}", f"{last:.3f}", step, *map(_percent, shares)))
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


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def draw_simulated(found: Sequence[Simulated]) -> Figure:
    """Time and bytes of a step against the number of nodes, a line per policy."""
    policies = list(dict.fromkeys(policy for policy, _ in found))
    colours = palette(len(policies))
    counts = sorted({len(one.nodes) for _, one in found})
    with styled():
        figure = Figure(figsize=(8.0, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for number, policy in enumerate(policies):
            own = sorted((one for name, one in found if name == policy), key=lambda one: len(one.nodes))
            look = {
                "color": colours[number],
                "marker": _MARKERS[number % len(_MARKERS)],
                "markersize": 5,
                "label": policy,
            }
            nodes = [len(one.nodes) for one in own]
            left.plot(nodes, [1e3 * one.seconds_per_step for one in own], **look)
            right.plot(nodes, [1e-3 * one.bytes_per_step for one in own], **look)
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
