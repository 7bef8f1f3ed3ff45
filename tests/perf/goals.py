"""The performance goals of the project, and the measured figures compared with them.

A missed goal fails no test, because other work on the machine changes every figure. The measurements are
shown in a table at the end of the run and, with ``--record-goals``, written to files of one processor.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from adabench.analysis.tables import markdown

from .reasons import reason


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


WHERE_COSTS_ARE = """\
[bench.json](bench.json) has each figure in full and, under `costs`, each system's CPU time and speed. \
[Recorded sessions](../../docs/reference/recorded-sessions.md) shows the runs."""

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


def goal_table(rows: Sequence[Row], notes: Sequence[str] = ()) -> str:
    """Return a Markdown table in which rows that differ in one word and have the same goal are one line.

    The number of a missed goal's reason in `notes`, counted from one, follows its verdict.
    """
    lines = []
    for alike in _lines(rows):
        one = alike[0]
        figures = ", ".join("–" if row.figure is None else f"{row.figure:.3g}" for row in alike)
        bound = "–" if one.goal is None else f"{'≤' if one.at_most else '≥'} {one.goal:g}"
        verdicts = [_with_note(row, notes) for row in alike]
        verdict = ", ".join(verdicts if len(set(verdicts)) > 1 else verdicts[:1])
        lines.append([_joined_names(alike), f"{figures} {one.unit}".rstrip(), bound, verdict])
    return markdown(["measurement", "figure", "goal", "verdict"], lines)


def _with_note(row: Row, notes: Sequence[str]) -> str:
    return f"{row.verdict} ({notes.index(reason(row.what)) + 1})" if row.missed and notes else row.verdict


def _lines(rows: Sequence[Row]) -> list[list[Row]]:
    lines: list[list[Row]] = []
    for row in rows:
        if lines and _differ_in_one_word(lines[-1], row):
            lines[-1].append(row)
        else:
            lines.append([row])
    return lines


def _differ_in_one_word(rows: Sequence[Row], other: Row) -> bool:
    same = all((row.unit, row.goal, row.at_most) == (other.unit, other.goal, other.at_most) for row in rows)
    words = [row.what.split() for row in (*rows, other)]
    return (
        same
        and len({len(one) for one in words}) == 1
        and sum(len(set(column)) > 1 for column in zip(*words, strict=True)) == 1
    )


def _joined_names(rows: Sequence[Row]) -> str:
    columns = zip(*(row.what.split() for row in rows), strict=True)
    return " ".join(_joined_words(tuple(dict.fromkeys(column))) for column in columns)


def _joined_words(words: tuple[str, ...]) -> str:
    comma = "," if words[0].endswith(",") else ""
    return " / ".join(word.removesuffix(",") for word in words) + comma if len(words) > 1 else words[0]


def page(machine: str, day: str, rows: Sequence[Row]) -> str:
    """Return all figures as a Markdown page: goals, then numbered reasons for the missed ones."""
    missed = [row for row in rows if row.missed]
    notes = list(dict.fromkeys(reason(row.what) for row in missed))
    with_goals = [row for row in rows if row.figure is not None and row.goal is not None]
    parts = [
        "# Figures and goals",
        f"`make bench` on {day} met {len(with_goals) - len(missed)} of {len(with_goals)} goals: {machine}.",
        goal_table(rows, notes),
        *(["\n".join(f"{number}. {text}" for number, text in enumerate(notes, 1))] if notes else []),
        WHERE_COSTS_ARE,
    ]
    return "\n\n".join(parts) + "\n"


def write_record(file: Path, machine: str, rows: Sequence[Row], costs: Sequence[Cost]) -> Path:
    """Write all figures as JSON and as a page in the same folder, and return the path of the page."""
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
    written.write_text(page(machine, f"{now:%Y-%m-%d}", rows), encoding="utf-8")
    return written
