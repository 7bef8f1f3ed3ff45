"""The performance goals of the project, and the measured figures compared with them.

A missed goal fails no test, because other work on the machine changes every figure. The measurements are
shown in a table at the end of the run and, with ``--record-goals``, written to files of one processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from adabench.analysis.tables import markdown

from .reasons import reason

__all__ = ["ROWS", "Cost", "Goal", "Limit", "Row", "cost_table", "goal", "goal_table", "page", "write_record"]


class Row(msgspec.Struct, frozen=True):
    """A figure and its goal: at least `goal`, or at most that if `at_most`.

    A row without a goal is listed for comparison; a row without a figure was not measured, and `missing`
    gives the reason.
    """

    what: str
    unit: str
    figure: float | None = None
    goal: float | None = None
    at_most: bool = False
    missing: str | None = None

    @property
    def missed(self) -> bool:
        if self.figure is None or self.goal is None:
            return False
        return self.figure > self.goal if self.at_most else self.figure < self.goal

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return self.missing or "not measured"
        if self.goal is None:
            return "for comparison"
        if not self.missed:
            return "met"
        part = self.figure / self.goal - 1 if self.at_most else 1 - self.figure / self.goal
        return f"missed by {part:.0%}" if part >= 0.01 else "missed by less than 1%"


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the measured runs of a cell.

    A link's round trip and rate were measured right before each run; the relay's CPU time is no part of the
    cell's.
    """

    study: str
    usecase: str
    backend: str
    cpu_microseconds_per_sample: float
    samples_per_second: float
    quality: float
    runs: int
    round_trip_ms: float | None = None
    gbit_per_second: float | None = None
    relay_microseconds_per_sample: float | None = None


HOW_LINKS_ARE_MADE = """\
Medians of runs. In the study `links` each node is in a network namespace of its own and a relay carries all \
packets, ours and the peers', so all sockets are delayed alike; round trip and rate were measured through it \
right before each run. In the study `latency` the parameter server's transport delays its own frames."""

ROWS = pytest.StashKey[Sequence[Row]]()

Goal = Callable[..., None]
Limit = Callable[[str, float, float], None]


@pytest.fixture
def goal(request: pytest.FixtureRequest) -> Goal:
    """A function that notes a row: ``goal(what, figure, at_least=2, unit="× index_add_")``, or `at_most`."""

    def note(
        what: str, figure: float, *, at_least: float | None = None, at_most: float | None = None, unit: str
    ) -> None:
        bound = at_least if at_most is None else at_most
        assert bound is not None
        row = Row(what, unit, round(figure, 4), bound, at_most is not None)
        request.config.stash[ROWS] = [*request.config.stash.get(ROWS, []), row]

    return note


def goal_table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = []
    for row in rows:
        figure = "–" if row.figure is None else f"{row.figure:.3g} {row.unit}"
        bound = "–" if row.goal is None else f"{'≤' if row.at_most else '≥'} {row.goal:g}"
        lines.append([row.what, figure, bound, row.verdict])
    return markdown(["what", "figure", "goal", "verdict"], lines)


def cost_table(costs: Sequence[Cost]) -> str:
    """A Markdown table of every cell that was trained."""
    names = [
        *("study", "use case", "system", "CPU µs per sample", "samples per second", "quality", "runs"),
        *("round trip (ms)", "Gbit/s", "relay's CPU µs per sample"),
    ]
    rows = [
        [
            *(cost.study, cost.usecase, cost.backend),
            *(f"{cost.cpu_microseconds_per_sample:.1f}", f"{cost.samples_per_second:,.0f}"),
            *(f"{cost.quality:.4f}", f"{cost.runs}"),
            *map(_optional, (cost.round_trip_ms, cost.gbit_per_second, cost.relay_microseconds_per_sample)),
        ]
        for cost in costs
    ]
    return markdown(names, rows)


def page(machine: str, day: str, rows: Sequence[Row], costs: Sequence[Cost]) -> str:
    """All figures as a Markdown page: goals, reasons for missed ones, and the cost of each system."""
    missed = [row for row in rows if row.missed]
    reasons = [
        f"- **{'; '.join(f'{row.what} ({row.verdict})' for row in alike)}**: {text}"
        for text, alike in groupby(missed, key=lambda row: reason(row.what))
    ]
    parts = [
        "# Figures and goals",
        f"Written by `make bench` on {day}: {machine}.",
        goal_table(rows),
        "## Why goals are missed",
        *(["\n".join(reasons)] if reasons else ["None is."]),
        "## What each system took",
        HOW_LINKS_ARE_MADE,
        *([cost_table(costs)] if costs else ["No session was found."]),
    ]
    return "\n\n".join(parts) + "\n"


def write_record(file: Path, machine: str, rows: Sequence[Row], costs: Sequence[Cost]) -> Path:
    """Write all figures as JSON and as a page beside it; returns the path of the page."""
    now = datetime.now(timezone.utc)
    record = {
        "measured_at": now.isoformat(timespec="seconds"),
        "machine": machine,
        "rows": [
            {
                **msgspec.to_builtins(row),
                "verdict": row.verdict,
                "reason": reason(row.what) if row.missed else None,
            }
            for row in rows
        ],
        "costs": costs,
    }
    file.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    written = file.with_name(f"{file.stem.upper()}.md")
    written.write_text(page(machine, f"{now:%Y-%m-%d}", rows, costs), encoding="utf-8")
    return written


def _optional(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
