"""Errors of simulated times: tables and a figure that compare measurements with simulations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from adabench.analysis.style import palette, styled

TECHNIQUES = ("static", "relocation", "replication", "adaptive", "full_replication")
SAME = 1.05
"""Measured times that differ by less than this factor count as equal."""
BAND = 1.25


@dataclass(frozen=True)
class SimulatedCell:
    """A cell of a study that was run and simulated; times and bytes are per step of a worker.

    Attributes
    ----------
    usecase : str
        Name of the use case.
    setting : str
        Setting of the cell without its technique.
    technique : str
        Technique of the rows.
    held_out : bool
        Whether the cell was not used when costs were modelled.
    nodes, runs : int
        Number of nodes in the cluster, and of measured runs.
    milliseconds, simulated_milliseconds : float
        Wall time of a step, measured and simulated.
    cpu, simulated_cpu : float
        CPU time of all nodes in milliseconds, divided by their workers' steps, measured and simulated.
    kilobytes, simulated_kilobytes : float
        Kilobytes that a node sends per step, measured and simulated.
    """

    usecase: str
    setting: str
    technique: str
    held_out: bool
    nodes: int
    runs: int
    milliseconds: float
    simulated_milliseconds: float
    cpu: float
    simulated_cpu: float
    kilobytes: float
    simulated_kilobytes: float

    @property
    def ratio(self) -> float:
        """Simulated ÷ measured time."""
        return self.simulated_milliseconds / self.milliseconds


def order_is_right(cells: Sequence[SimulatedCell]) -> bool:
    """Return whether the simulation orders every pair of cells as the measurement does.

    Pairs are ignored if their measured times differ by less than the factor `SAME`.
    """
    for one, other in combinations(cells, 2):
        slow, fast = (one, other) if one.milliseconds > other.milliseconds else (other, one)
        if slow.milliseconds < SAME * fast.milliseconds:
            continue
        if slow.simulated_milliseconds < fast.simulated_milliseconds:
            return False
    return True


def error_rows(cells: Sequence[SimulatedCell]) -> list[dict[str, str]]:
    """Return a line for the cells used in modelling and a line for held-out cells: errors, and orders."""
    lines = []
    for held_out, name in ((False, "looked at"), (True, "held out")):
        own = [cell for cell in cells if cell.held_out is held_out]
        if not own:
            continue
        line = {"cells": f"{len(own)} {name}"}
        for what, measured, simulated in (
            ("time", "milliseconds", "simulated_milliseconds"),
            ("CPU time", "cpu", "simulated_cpu"),
            ("bytes", "kilobytes", "simulated_kilobytes"),
        ):
            errors = [
                abs(getattr(cell, simulated) / getattr(cell, measured) - 1)
                for cell in own
                if getattr(cell, measured) > 0
            ]
            line[f"{what}: median"] = f"{100 * median(errors):.1f} %" if errors else "–"
            line[f"{what}: worst"] = f"{100 * max(errors):.1f} %" if errors else "–"
        orders = [order_is_right(several) for several in _settings(own).values() if len(several) > 1]
        line["orders right"] = f"{sum(orders)} of {len(orders)}" if orders else "–"
        lines.append(line)
    return lines


def setting_rows(cells: Sequence[SimulatedCell]) -> list[dict[str, str]]:
    """A line per setting: the time of the fastest technique, and simulated ÷ measured time of all."""
    lines = []
    for setting, own in _settings(cells).items():
        by_technique = {cell.technique: cell for cell in own}
        first = min(own, key=lambda cell: cell.milliseconds)
        line = {
            "setting": f"`{setting}`" + (" (held out)" if own[0].held_out else ""),
            "fastest": f"{first.milliseconds:.2f} ms",
        }
        for technique in TECHNIQUES:
            cell = by_technique.get(technique)
            line[technique] = "–" if cell is None else f"{cell.ratio:.2f}"
        line["order"] = "–" if len(own) < 2 else "right" if order_is_right(own) else "wrong"
        lines.append(line)
    return lines


def draw_errors(cells: Sequence[SimulatedCell]) -> Figure:
    """Draw simulated against measured step times, with the identity line; held-out cells are filled."""
    names = sorted({cell.usecase for cell in cells})
    colours = dict(zip(names, palette(len(names)), strict=True))
    times = [each for cell in cells for each in (cell.milliseconds, cell.simulated_milliseconds)]
    low, high = min(times) / BAND, max(times) * BAND
    with styled():
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes = figure.subplots()
        axes.plot([low, high], [low, high], color="0.4", linewidth=1)
        for factor in (BAND, 1 / BAND):
            axes.plot([low, high], [low * factor, high * factor], color="0.6", linewidth=0.8, linestyle=":")
        for name in names:
            for held_out in (False, True):
                own = [cell for cell in cells if cell.usecase == name and cell.held_out is held_out]
                axes.scatter(
                    [cell.milliseconds for cell in own],
                    [cell.simulated_milliseconds for cell in own],
                    s=22,
                    linewidths=1.0,
                    edgecolors=[colours[name]],
                    facecolors=[colours[name]] if held_out else "none",
                    label=name if held_out else None,
                    zorder=3,
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        ticks = [
            tick
            for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for tick in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
            if low <= tick <= high
        ]
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_minor_locator(NullLocator())
        axes.set_aspect("equal")
        axes.set_xlabel("measured time of a step (ms)")
        axes.set_ylabel("simulated (ms)")
        axes.legend(
            title="filled: held-out cells\ndotted: errors of ±25 %",
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
        )
        sns.despine(figure)
    return figure


def _settings(cells: Sequence[SimulatedCell]) -> dict[str, list[SimulatedCell]]:
    found: dict[str, list[SimulatedCell]] = {}
    for cell in cells:
        found.setdefault(cell.setting, []).append(cell)
    return found
