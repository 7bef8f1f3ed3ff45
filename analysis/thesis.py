"""The bars of the thesis, read off its figures, for comparison with ours as ratios to PrefetchIterator.

The thesis is *Adaptive Parameter Management in Machine Learning Systems*; its code and figures are in
https://github.com/aendk/AutoAda. Every number here is from that repository at commit 370edc7 (June 2023). The
bars are from ``img/gcn.png`` and ``img/ctr.png``. The section "Performance" of its README explains that each
use case ran three times, that bars are averages, and that whiskers go from the least to the greatest run
time. No table of the seconds is published there.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from matplotlib.figure import Figure

from adabench.analysis.load import measured
from adabench.analysis.style import palette, styled
from adabench.results.record import Run

RUNS = 3
"""Number of runs of each bar, from the README of the thesis's code."""


class Bar(NamedTuple):
    """Mean, least and greatest of `RUNS` runs, in seconds on the thesis's cluster."""

    mean: float
    low: float
    high: float


# The figures call the three "PrefetchIterator", "Manual Intent" and "Automatic Intent".
THESIS: dict[str, dict[str, Bar]] = {
    "gcn": {  # In img/gcn.png 248 pixels are 100 seconds, so a number is accurate to one second.
        "prefetch": Bar(456, 449, 461),
        "manual": Bar(459, 456, 461),
        "autoada-automatic": Bar(485, 482, 488),
    },
    "ctr": {  # In img/ctr.png 206 pixels are 1,000 seconds, so a number is accurate to ten seconds.
        "prefetch": Bar(5520, 5320, 5665),
        "manual": Bar(5630, 5485, 5885),
        "autoada-automatic": Bar(5580, 5505, 5650),
    },
}


def draw_thesis(runs: Sequence[Run]) -> Figure | None:
    """Draw training times of one use case over the mean of `prefetch`, in the thesis and here.

    Machines, data and parameter server differ, so only the ratios can be compared.

    Returns
    -------
    Figure or None
        Figure of the two bars; None if the thesis has no such figure, `prefetch` was not measured here, or it
        has several cells.
    """
    finished = [run for run in measured(runs) if run.seconds.train is not None]
    table = THESIS.get(finished[0].usecase) if finished else None
    ours = {
        name: [run.seconds.train or 0.0 for run in finished if run.backend == name] for name in table or {}
    }
    if (
        table is None
        or not ours["prefetch"]
        or len({run.cell for run in finished if run.backend in table}) > len(table)
    ):
        return None
    names = [name for name in table if ours[name]]
    scale = fmean(ours["prefetch"])
    here = {
        name: Bar(fmean(ours[name]) / scale, min(ours[name]) / scale, max(ours[name]) / scale)
        for name in names
    }
    there = {name: Bar(*(value / table["prefetch"].mean for value in table[name])) for name in names}
    with styled():
        figure = Figure(figsize=(1.6 * len(names) + 1.6, 3.8), layout="constrained")
        axes = figure.subplots()
        colours = palette(2)
        for side, (label, bars) in enumerate(
            {f"thesis (n = {RUNS})": there, _ours(ours, names): here}.items()
        ):
            for index, name in enumerate(names):
                bar, place = bars[name], index + 0.4 * (side - 0.5)
                axes.bar(
                    place, bar.mean, width=0.36, color=colours[side], label=label if index == 0 else None
                )
                error = [[bar.mean - bar.low], [bar.high - bar.mean]]
                axes.errorbar(place, bar.mean, yerr=error, fmt="none", ecolor="black", capsize=5)
        axes.set_xticks(range(len(names)), names)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("training time over prefetch's mean")
        axes.set_title(f"{finished[0].usecase}: bars are means, whiskers min and max", fontsize=10)
        axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.08))
    return figure


def _ours(seconds: dict[str, list[float]], names: Sequence[str]) -> str:
    counts = sorted({len(seconds[name]) for name in names})
    return f"here (n = {counts[0]})" if len(counts) == 1 else f"here (n = {counts[0]} to {counts[-1]})"
