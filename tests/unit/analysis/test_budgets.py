"""Budgets of profiled runs as bars and as a table."""

from pathlib import Path

import msgspec
import pytest
from matplotlib.patches import Rectangle

from adabench.analysis.budgets import budget_text, draw_budgets, parts_of
from adabench.analysis.load import last_attempts
from adabench.results.record import Budget, Run
from adabench.results.store import SessionStore

REFERENCE = Path(__file__).resolve().parents[3] / "results" / "reference"

BUDGETS = [
    Budget(
        rank=rank,
        steps=10,
        seconds=0.06,
        parts={"forward": 0.01, "waiting for rows": 0.03, "something new": 0.02},
        background={"adaps channel": 0.005},
    )
    for rank in range(2)
]


def profiled(budgets: list[Budget]) -> Run:
    runs = last_attempts(SessionStore(REFERENCE / "ctr").runs())
    run = next(run for run in runs if run.phase == "measured" and run.status == "ok")
    return msgspec.structs.replace(run, budgets=budgets)


def test_the_parts_of_a_bar_follow_one_another_to_the_length_of_a_step() -> None:
    figure = draw_budgets([profiled(BUDGETS)])
    assert figure is not None
    (axes,) = figure.axes
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle) and not patch.get_hatch()]
    first = sorted((bar for bar in bars if bar.get_y() < 0.3), key=lambda bar: bar.get_x())
    edges = [0.0]
    for bar in first:
        assert bar.get_x() == pytest.approx(edges[-1])
        edges.append(bar.get_x() + bar.get_width())
    assert edges == pytest.approx([0, 1, 4, 6])  # milliseconds
    hatched = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    assert [bar.get_width() for bar in hatched] == pytest.approx([0.5, 0.5])
    assert [label.get_text().splitlines()[-1] for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_runs_that_were_not_profiled_have_no_bars() -> None:
    assert draw_budgets([profiled([])]) is None


def test_known_parts_come_first_and_in_order() -> None:
    assert parts_of(BUDGETS) == ["forward", "waiting for rows", "something new"]


def test_the_table_has_a_column_a_node_and_the_sum() -> None:
    rows = {line[:36].strip(): line[36:].split() for line in budget_text(profiled(BUDGETS)).splitlines()}
    assert rows["forward"] == ["1.000", "1.000"]
    assert rows["sum"] == ["6.000", "6.000"]
    assert rows["beside it, CPU of 'adaps channel'"] == ["0.500", "0.500"]
    assert rows["steps"] == ["10", "10"]
