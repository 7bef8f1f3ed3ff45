"""Cost of a sample in each system: CPU time, and samples per second."""

from collections.abc import Callable, Sequence
from statistics import median

from matplotlib.figure import Figure

from adabench.analysis.load import SUCCESS, cell_labels
from adabench.analysis.style import decimals_of, palette, styled
from adabench.results.record import Run


def cpu_microseconds(run: Run) -> float:
    """CPU time of all threads of all processes in training, per sample."""
    if run.train_cpu_seconds is None:
        raise ValueError(f"run {run.run_id} has no CPU seconds: it was not trained to its end")
    return 1e6 * run.train_cpu_seconds / run.samples


def samples_per_second(run: Run) -> float:
    """All workers' samples by the seconds of the epochs."""
    return run.samples / sum(run.epoch_seconds)


PANELS: tuple[tuple[Callable[[Run], float], float, str], ...] = (
    (cpu_microseconds, 1.0, "CPU time per sample (µs; less is better)"),
    (samples_per_second, 1e-3, "thousand samples per second (more is better)"),
)


def draw_costs(runs: Sequence[Run]) -> Figure | None:
    """Median cost and speed of the cells of one use case, every run a dot; cheapest first on each network.

    None unless another system than the parameter server was distributed over nodes: only then are there
    systems to compare.
    """
    done = [run for run in runs if run.status in SUCCESS]
    if not any(run.nodes > 1 and not run.counters for run in done):
        return None
    labels = cell_labels(done)
    by_cell = {cell: [run for run in done if run.cell == cell] for cell in labels}
    cells = sorted(
        by_cell, key=lambda cell: (by_cell[cell][0].network, _median(by_cell[cell], cpu_microseconds))
    )
    with styled():
        figure = Figure(figsize=(10.0, 1.1 + 0.36 * len(cells)), layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (measure, scale, title), colour in zip(panels, PANELS, palette(len(PANELS)), strict=True):
            decimals = decimals_of([scale * _median(by_cell[cell], measure) for cell in cells])
            for row, cell in enumerate(cells):
                values = [scale * measure(run) for run in by_cell[cell]]
                axes.barh(row, median(values), height=0.62, color=colour, alpha=0.8, zorder=2)
                axes.plot(
                    values, [row] * len(values), "o", color="white", markeredgecolor="black", markersize=4
                )
                axes.annotate(
                    f"{median(values):.{decimals}f}",
                    (0, row),
                    (4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                )
            axes.set_xlim(left=0)
            axes.grid(visible=False, axis="y")
            axes.set_title(title, fontsize=9.5, loc="left")
        panels[0].set_yticks(range(len(cells)), [labels[cell] for cell in cells], fontsize=9)
        panels[0].invert_yaxis()
        figure.supxlabel("bar: median; dots: single runs", fontsize=8.5)
    return figure


def _median(runs: Sequence[Run], measure: Callable[[Run], float]) -> float:
    return median(map(measure, runs))
