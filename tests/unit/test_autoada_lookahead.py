"""The lookahead widens until rows are local when they are read, and stops there."""

from __future__ import annotations

from typing import Any, cast

from autoada.lookahead import FIRST, MOST, QUIET_STEPS, Lookahead


class SlowNode:
    """A node on which rows arrive `steps` steps after they were announced."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.remote = 0.0

    def stats(self) -> dict[str, float]:
        return {"pulled_remote": self.remote}


def run(lookahead: Lookahead, node: SlowNode, steps: int) -> list[int]:
    """Train some steps; gives the lookahead after each."""
    widths = []
    announced_ahead = [lookahead.batches] * (steps + 1)
    for step in range(steps):
        with lookahead.watching(cast("Any", node)):
            if announced_ahead[step] < node.steps:
                node.remote += 10
        for later in range(step + lookahead.batches, steps + 1):
            announced_ahead[later] = lookahead.batches
        widths.append(lookahead.batches)
    return widths


def test_it_widens_until_no_row_is_late_and_stops_there() -> None:
    lookahead = Lookahead("auto")
    node = SlowNode(steps=7)
    widths = run(lookahead, node, 200)
    assert widths[0] == FIRST
    assert widths[-1] == 8
    assert widths == sorted(widths)
    node.steps = 50
    assert run(lookahead, node, 50) == [8] * 50


def test_it_stays_where_rows_are_never_late() -> None:
    assert set(run(Lookahead("auto"), SlowNode(steps=0), 5 * QUIET_STEPS)) == {FIRST}


def test_it_has_an_end_where_rows_are_always_late() -> None:
    assert run(Lookahead("auto"), SlowNode(steps=10**6), 1000)[-1] == MOST


def test_a_given_lookahead_stays() -> None:
    assert set(run(Lookahead(5), SlowNode(steps=100), 50)) == {5}
