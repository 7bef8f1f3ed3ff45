"""Compares the search's solvers at equal CPU time; what is found goes into docs/concepts/search.md.

``python tools/compare_solvers.py [INSTANCES]``: one instance of each size, or as many as are given.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from adabench.analysis.tables import markdown
from adabench.harness.estimate.search.examples import many_tables
from adabench.harness.estimate.search.problem import Problem
from adabench.harness.estimate.search.solvers import solve

__all__ = ["compared"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "concepts" / "search.md"
BEGIN, END = "<!-- compared: written by tools/compare_solvers.py -->", "<!-- end of compared -->"
SIZES = ((100, 10, 4), (1000, 10, 16))
"""Tables, choices of each, nodes."""
EFFORTS = (0.1, 0.5, 1.0, 2.0, 4.0)
BUDGETS = (1.0, 4.0)
"""Seconds of CPU time."""
SOLVERS = ("exact", "annealing", "differentiable", "auto")


def compared(instances: int) -> list[dict[str, str]]:
    """A line per size and solver: the gap to the best bound within each budget, in the median."""
    solve(many_tables(20, 5, 2), "differentiable", 0.1)  # what is imported once takes no part
    lines = []
    for tables, choices, nodes in SIZES:
        problems = [many_tables(tables, choices, nodes, seed) for seed in range(instances)]
        found = {solver: [_tried(problem, solver) for problem in problems] for solver in SOLVERS}
        bounds = [
            max(bound for solver in SOLVERS for _, _, bound in found[solver][number])
            for number in range(instances)
        ]
        for solver in SOLVERS:
            line = {"tables × choices × nodes": f"{tables:,} × {choices} × {nodes}", "solver": f"`{solver}`"}
            for budget in BUDGETS:
                gaps = [
                    min((value for cpu, value, _ in tries if cpu <= budget), default=float("nan")) / bound - 1
                    for tries, bound in zip(found[solver], bounds, strict=True)
                ]
                line[f"{budget:g} s"] = "–" if np.isnan(gaps).any() else f"{100 * median(gaps):.2f} %"
            one = [next(cpu for cpu, _, _ in tries[EFFORTS.index(1.0) :]) for tries in found[solver]]
            line["CPU time at effort 1"] = f"{median(one):.1f} s"
            lines.append(line)
    return lines


def _tried(problem: Problem, solver: str) -> list[tuple[float, float, float]]:
    """CPU seconds, value and bound with each effort."""
    tries = []
    for effort in EFFORTS:
        began = time.process_time()
        solution = solve(problem, solver, effort)
        tries.append((time.process_time() - began, solution.value, solution.bound))
        if tries[-1][0] > 2 * max(BUDGETS) and effort >= 1.0:
            break
    return tries


def main() -> None:
    instances = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    lines = compared(instances)
    heads = list(lines[0])
    table = markdown(heads, [[line[head] for head in heads] for line in lines])
    said = (
        "What each solver has found within so many seconds of CPU time of one core, above the best bound "
        "that any of them has proved, "
        + ("on one random instance of each size:" if instances == 1 else f"median of {instances} instances:")
    )
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{said}\n\n{table}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
