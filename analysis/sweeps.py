"""Training time over a parameter that was swept: nodes, workers, or any numeric option."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.figure import Figure

from adabench.analysis.load import SUCCESS, cell_labels
from adabench.analysis.style import colours_of, rank, styled
from adabench.results.record import Run

FEWEST = 3
"""Minimum number of values of a sweep; two values are compared better as bars."""

_TOPOLOGY = ("nodes", "workers")


def swept(runs: Sequence[Run]) -> list[str]:
    """Return the settings with at least `FEWEST` numeric values for one backend, in one use case."""
    done = [run for run in runs if run.status in SUCCESS]
    names = [*_TOPOLOGY, *dict.fromkeys(name for run in done for name in run.params)]
    # Names become file names, and records may come from untrusted sources.
    return [name for name in names if name.isidentifier() and _most_values(done, name) >= FEWEST]


def draw_sweep(runs: Sequence[Run], name: str) -> Figure:
    """Draw a line over the values of `name` per backend and combination of other parameters.

    Points are means, whiskers go from the fastest to the slowest run.
    """
    done = [run for run in runs if run.status in SUCCESS and _value(run, name) is not None]
    lines: dict[str, dict[float, list[float]]] = {}
    labels = cell_labels(done)
    backends: dict[str, str] = {}
    for run in sorted(done, key=lambda run: rank(run.backend)):
        label = _without(labels[run.cell], name)
        backends[label] = run.backend
        line = lines.setdefault(label, {})
        line.setdefault(_value(run, name) or 0.0, []).append(run.seconds.train or 0.0)
    with styled():
        figure = Figure(figsize=(7.0, 3.8), layout="constrained")
        axes = figure.subplots()
        colours = colours_of(backends)
        for label, points in lines.items():
            values = sorted(points)
            means = [fmean(points[value]) for value in values]
            low = [mean - min(points[value]) for value, mean in zip(values, means, strict=True)]
            high = [max(points[value]) - mean for value, mean in zip(values, means, strict=True)]
            axes.errorbar(
                values, means, yerr=[low, high], fmt="o-", color=colours[label], capsize=4, label=label
            )
        ticks = sorted({value for points in lines.values() for value in points})
        axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axes.set_ylim(bottom=0)
        axes.set_xlabel(name)
        axes.set_ylabel("training time of a run (seconds)")
        axes.set_title(f"{runs[0].usecase}: means, whiskers min and max", fontsize=10)
        axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.08))
    return figure


def _value(run: Run, name: str) -> float | None:
    value = getattr(run, name) if name in _TOPOLOGY else run.params.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _without(label: str, name: str) -> str:
    """Return a cell's label without the parameter of the axis."""
    backend, _, rest = label.partition(" (")
    parts = [part for part in rest.rstrip(")").split(", ") if part and not part.startswith(f"{name}=")]
    return f"{backend} ({', '.join(parts)})" if parts else backend


def _most_values(runs: Sequence[Run], name: str) -> int:
    """Return the largest number of values of any backend."""
    values: dict[str, set[float]] = {}
    for run in runs:
        value = _value(run, name)
        if value is not None:
            values.setdefault(run.backend, set()).add(value)
    return max(map(len, values.values()), default=0)
