"""The parts of a training step's time: stacked bars and a table of profiled runs."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from adabench.analysis.load import SUCCESS, cell_labels
from adabench.analysis.style import INK, styled
from adabench.results.record import Budget, Run

Colour = tuple[float, float, float]

PARTS = {
    "forward": "#4878d0",
    "backward": "#82a6e0",
    "update": "#c3d4f2",
    "pull": "#6acc64",
    "push": "#b0e3ac",
    "prediction": "#956cb4",
    "de-duplication": "#c4a8d6",
    "signalling": "#e3d3ec",
    "waiting for rows": "#d65f5f",
    "waiting for the others": "#eeb0b0",
    "loader": "#8c613c",
    "other": "#bbbbbb",
}
"""Parts in the order of the bars; related parts have the same hue."""


def draw_budgets(runs: Sequence[Run]) -> Figure | None:
    """Milliseconds of a worker's step by part, a bar per node, for runs of one use case.

    A thin hatched bar below shows the CPU time of the process's other threads. None if no run was profiled.
    """
    labels = cell_labels(runs)
    rows = [
        (_name(labels[run.cell], run, budget), budget)
        for run in runs
        if run.status in SUCCESS
        for budget in run.budgets
    ]
    if not rows:
        return None
    used = parts_of([budget for _, budget in rows])
    with styled():
        figure = Figure(figsize=(8.0, 1.5 + 0.75 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for row, (_, budget) in enumerate(rows):
            left = 0.0
            for part in used:
                width = _per_step(budget, budget.parts.get(part, 0.0))
                axes.barh(row, width, 0.5, left, color=PARTS.get(part, "#777777"), linewidth=0)
                left += width
            axes.annotate(
                f"{left:.2f} ms", (left, row), (4, 0), textcoords="offset points", va="center", fontsize=8.5
            )
            beside = _per_step(budget, sum(budget.background.values()))
            axes.barh(row + 0.36, beside, 0.14, color="white", edgecolor=INK, hatch="//////", linewidth=0.6)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.5)
        axes.set_xlim(0, 1.12 * axes.get_xlim()[1])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("wall time of a worker's step (ms)")
        handles = [Patch(facecolor=PARTS.get(part, "#777777"), label=part) for part in used]
        handles.append(
            Patch(facecolor="white", edgecolor=INK, hatch="//////", label="background threads, CPU time")
        )
        figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8.5)
    return figure


def budget_text(run: Run) -> str:
    """A table of a profiled run: milliseconds of a worker's step by part, a column a node."""
    budgets = run.budgets
    lines = [("a worker's step, ms", [f"rank {budget.rank}" for budget in budgets])]
    lines += [
        (part, [_shown(budget, budget.parts.get(part, 0.0)) for budget in budgets])
        for part in parts_of(budgets)
    ]
    lines.append(("sum", [_shown(budget, budget.seconds) for budget in budgets]))
    for thread in dict.fromkeys(name for budget in budgets for name in budget.background):
        name = f"beside it, CPU of '{thread}'"
        lines.append((name, [_shown(budget, budget.background.get(thread, 0.0)) for budget in budgets]))
    lines.append(("steps", [str(budget.steps) for budget in budgets]))
    width = max(len(name) for name, _ in lines)
    return "\n".join(
        f"{name:<{width}}  " + "  ".join(f"{value:>8}" for value in values) for name, values in lines
    )


def parts_of(budgets: Sequence[Budget]) -> list[str]:
    """Return the parts that took any time, in the order of the bars; unknown parts come last."""
    found = {part for budget in budgets for part, seconds in budget.parts.items() if seconds > 0}
    return [part for part in PARTS if part in found] + sorted(found - PARTS.keys())


def _name(label: str, run: Run, budget: Budget) -> str:
    return label if run.nodes == 1 else f"{label}\nrank {budget.rank}"


def _per_step(budget: Budget, seconds: float) -> float:
    """Milliseconds."""
    return 1000 * seconds / budget.steps if budget.steps else 0.0


def _shown(budget: Budget, seconds: float) -> str:
    return f"{_per_step(budget, seconds):.3f}"
