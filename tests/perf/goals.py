"""The goals that the project has set itself, and how far each measured figure is from its own.

Tests only hold loose floors, because other work on the machine moves every figure; what was measured is shown
in a table at the end of the run, and written to a file with ``--record-goals``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

__all__ = ["ROWS", "Goal", "Row", "goal", "table", "write_record"]


class Row(msgspec.Struct, frozen=True):
    """A figure and what it should be: at least `goal`, or at most if `at_most`."""

    what: str
    figure: float
    goal: float
    unit: str
    at_most: bool = False

    @property
    def verdict(self) -> str:
        miss = self.figure / self.goal - 1 if self.at_most else 1 - self.figure / self.goal
        return f"missed by {miss:.0%}" if miss > 0 else "met"


ROWS = pytest.StashKey[Sequence[Row]]()

Goal = Callable[..., None]


@pytest.fixture
def goal(request: pytest.FixtureRequest) -> Goal:
    """A function that notes a row: ``goal(what, figure, at_least=2, unit="× index_add_")``, or `at_most`."""

    def note(
        what: str, figure: float, *, at_least: float | None = None, at_most: float | None = None, unit: str
    ) -> None:
        bound = at_least if at_most is None else at_most
        assert bound is not None
        row = Row(what, round(figure, 4), bound, unit, at_most is not None)
        request.config.stash[ROWS] = [*request.config.stash.get(ROWS, []), row]

    return note


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| what | figure | goal | |", "|---|---|---|---|"]
    for row in rows:
        sign = "≤" if row.at_most else "≥"
        figure = f"{row.figure:.3g} {row.unit}"
        lines.append(f"| {row.what} | {figure} | {sign} {row.goal:g} | {row.verdict} |")
    return lines


def write_record(file: Path, machine: str, rows: Sequence[Row], peers: Sequence[msgspec.Struct]) -> None:
    """Write all figures as JSON: `rows` with their goals, `peers` a line a backend."""
    record = {
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine,
        "rows": [{**msgspec.to_builtins(row), "verdict": row.verdict} for row in rows],
        "peers": peers,
    }
    file.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
