"""Results of simulations: a table for 80 columns, and a figure against the number of nodes."""

import math
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from adabench.analysis.style import INK, SVG, palette, standalone_svg, styled
from adabench.analysis.tables import aligned
from adabench.harness.estimate.simulated_study import SimulatedCell
from adaps.simulation import Simulation

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
        name = _short(policy, 22)
        shares = [_percent(one.shares()[share]) for share in _SHARES]
        local = "-" if math.isnan(one.local_share()) else f"{100 * one.local_share():.0f} %"
        step, sent = f"{1e3 * one.seconds_per_step:.2f}", f"{1e-3 * one.bytes_per_step:,.0f}"
        cells.append((name, str(len(one.nodes)), step, *shares, local, sent))
    return aligned(cells)


def node_table(found: Simulation, named: Collection[int]) -> list[str]:
    """A line for each of some nodes, one for all others, and sentences about lost nodes."""
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
            look = _look(number, colours, policy)
            nodes = [len(one.nodes) for one in own]
            left.plot(nodes, [1e3 * one.seconds_per_step for one in own], **look)
            right.plot(nodes, [1e-3 * one.bytes_per_step for one in own], **look)
        for axes, title in ((left, "time of a step (ms)"), (right, "sent per node and step (kB)")):
            _finish(axes, title, counts)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("nodes")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5), frameon=False)
        sns.despine(figure, left=True)
    return figure


def _look(number: int, colours: Sequence[Any], policy: str) -> dict[str, Any]:
    marker = _MARKERS[number % len(_MARKERS)]
    return {"color": colours[number], "marker": marker, "markersize": 5, "label": policy}


def _finish(axes: Axes, title: str, counts: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_title(title, fontsize=9.5, loc="left")
    axes.grid(visible=False, which="minor")


def study_tables(found: Sequence[SimulatedCell]) -> list[str]:
    """Lines of at most 80 columns: a table for each use case, number of workers and network."""
    lines, found = list[str](), _named(found)
    head = ("policy", "nodes", "ms/step", "speed-up", "waiting", "kB/step", "local", "busiest", "serving")
    for usecase, workers, network in _groups(found):
        cells: list[tuple[str, ...]] = [head]
        group = [one for one in found if (one.usecase, one.workers) == (usecase, workers)]
        own = [one for one in group if one.nodes == 1 or one.network == network]
        for one in sorted(own, key=lambda one: [cell.policy for cell in own].index(one.policy)):
            local = "-" if one.local is None else _percent(one.local)
            figures = [f"{one.ms_per_step:.2f}", _ratio(one.speed_up), _percent(one.waiting)]
            figures += [f"{1e-3 * one.bytes_per_step:,.0f}", local, _ratio(one.busiest), _ratio(one.serving)]
            cells.append((_short(one.policy, 16), str(one.nodes), *figures))
        lines += [
            _short(usecase, 80),
            f"{_per_node(workers)}, {network}, {own[0].compute_ms:.3g} ms to compute",
        ]
        lines += [*aligned(cells), ""]
    return lines


def speed_up_table(found: Sequence[SimulatedCell]) -> list[str]:
    """Lines with the speed-up over one node: a line per policy, and a column per number of nodes."""
    lines, found, titles = list[str](), _named(found), _titles(found)
    counts = sorted({one.nodes for one in found if one.speed_up is not None} - {1})
    for workers, network in dict.fromkeys((workers, network) for _, workers, network in _groups(found)):
        own = [one for one in found if (one.workers, one.network) == (workers, network) and one.nodes > 1]
        by_cell = {(one.usecase, one.policy, one.nodes): one.speed_up for one in own}
        cells = [("speed-up", "", *map(str, counts))]
        for usecase, policy in dict.fromkeys((usecase, policy) for usecase, policy, _ in by_cell):
            figures = [_ratio(by_cell.get((usecase, policy, count))) for count in counts]
            cells.append((_short(titles[usecase], 14), _short(policy, 16), *figures))
        lines += [f"{_per_node(workers)}, {network}", *aligned(cells, left=(0, 1)), ""]
    return lines[:-1] if counts else []


def draw_speed_ups(found: Sequence[SimulatedCell]) -> Figure:
    """Speed-up over one node against the number of nodes, a panel per use case and a line per policy.

    Each number of workers and network has a row of panels. A dashed line shows linear scaling.
    """
    found, titles = _named(found), _titles(found)
    usecases = list(dict.fromkeys(one.usecase for one in found))
    policies = list(dict.fromkeys(one.policy for one in found))
    rows = list(dict.fromkeys((workers, network) for _, workers, network in _groups(found)))
    counts = sorted({one.nodes for one in found})
    colours = palette(len(policies))
    with styled():
        figure = Figure(figsize=(1.0 + 2.6 * len(usecases), 0.9 + 2.5 * len(rows)), layout="constrained")
        panels = figure.subplots(len(rows), len(usecases), squeeze=False, sharex=True, sharey=True)
        for (row, (workers, network)), (column, usecase) in product(enumerate(rows), enumerate(usecases)):
            axes = panels[row][column]
            axes.plot(counts, counts, color=INK, linestyle="--", linewidth=0.8, label="linear")
            for number, policy in enumerate(policies):
                line = sorted(
                    (one.nodes, one.speed_up)
                    for one in found
                    if (one.usecase, one.policy, one.workers) == (usecase, policy, workers)
                    and (one.nodes == 1 or one.network == network)
                    and one.speed_up is not None
                )
                nodes, speed_ups = [one[0] for one in line], [one[1] for one in line]
                axes.plot(nodes, speed_ups, **_look(number, colours, policy))
            axes.set_yscale("log", base=2)
            axes.set_yticks(counts, [str(count) for count in counts])
            axes.yaxis.set_minor_formatter(NullFormatter())
            _finish(axes, f"{titles[usecase]}: {_per_node(workers)}, {network}", counts)
            axes.set_xlabel("nodes" if row == len(rows) - 1 else "")
            axes.set_ylabel("speed-up" if column == 0 else "")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5), frameon=False)
        sns.despine(figure, left=True)
    return figure


def _groups(found: Sequence[SimulatedCell]) -> list[tuple[str, int, str]]:
    """Return use cases, workers and networks. One node has no network, and is part of each group."""
    several = [one for one in found if one.nodes > 1] or found
    return list(dict.fromkeys((one.usecase, one.workers, one.network) for one in several))


def _titles(found: Sequence[SimulatedCell]) -> dict[str, str]:
    """Return a short name for each use case: without parameters, if no other one has this name."""
    usecases = list(dict.fromkeys(one.usecase for one in found))
    names = [usecase.partition("[")[0] for usecase in usecases]
    return {
        usecase: name if names.count(name) == 1 else usecase
        for usecase, name in zip(usecases, names, strict=True)
    }


def _named(found: Sequence[SimulatedCell]) -> Sequence[SimulatedCell]:
    """Return the cells with the name of the backend before the policy if there are several backends."""
    if len({one.backend for one in found}) <= 1:
        return found
    return [msgspec.structs.replace(one, policy=f"{one.backend} {one.policy}") for one in found]


def _per_node(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''} per node"


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def save_figure(figure: Figure, file: Path) -> None:
    """Write it; an SVG shows on a light and on a dark page."""
    if file.suffix == ".svg":
        file.write_text(standalone_svg(figure), encoding="utf-8")
        return
    with mpl.rc_context(SVG):
        figure.savefig(file, dpi=150)
