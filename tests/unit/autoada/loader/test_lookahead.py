"""The lookahead follows how late rows come: no wider than helps, and never settled for good."""

from __future__ import annotations

from typing import Any, cast

from autoada.loader.lookahead import FIRST, MOST, PAUSE, WINDOW, Lookahead

ROWS = 100


class SlowNode:
    """A node on which rows arrive `steps` steps after their announcement, and `always` rows never in time."""

    def __init__(self, steps: int, always: int = 0) -> None:
        self.steps = steps
        self.always = always
        self.counted = {"pulled_local": 0.0, "pulled_replica": 0.0, "pulled_remote": 0.0}

    def stats(self) -> dict[str, float]:
        return dict(self.counted)

    def read(self, ahead: int) -> None:
        remote = ROWS if ahead < self.steps else self.always
        self.counted["pulled_remote"] += remote
        self.counted["pulled_local"] += (ROWS - remote) // 2
        self.counted["pulled_replica"] += ROWS - remote - (ROWS - remote) // 2


def run(lookahead: Lookahead, node: SlowNode, steps: int, announced: bool = True) -> list[int]:
    """Train some steps; gives the lookahead after each."""
    widths = []
    announced_ahead = [lookahead.batches] * (steps + 1)
    for step in range(steps):
        lookahead.begin_step(cast("Any", node))
        node.read(announced_ahead[step])
        lookahead.end_step(cast("Any", node), announced)
        for later in range(step + lookahead.batches, steps + 1):
            announced_ahead[later] = lookahead.batches
        widths.append(lookahead.batches)
    return widths


def test_it_widens_until_no_row_is_late() -> None:
    lookahead = Lookahead("auto")
    widths = run(lookahead, SlowNode(steps=7), 200)
    assert widths[0] == FIRST
    assert widths[-1] == 8
    assert widths == sorted(widths)


def test_it_widens_again_when_rows_become_late_later() -> None:
    lookahead = Lookahead("auto")
    node = SlowNode(steps=0)
    assert set(run(lookahead, node, 20 * WINDOW)) == {FIRST}
    node.steps = 12
    assert run(lookahead, node, 200)[-1] == 16
    node.steps = 30
    assert run(lookahead, node, PAUSE + 200)[-1] == 32


def test_it_goes_back_where_more_does_not_help() -> None:
    lookahead = Lookahead("auto")
    widths = run(lookahead, SlowNode(steps=10**6), 300)
    assert max(widths) == MOST
    assert widths[-1] == FIRST
    lookahead = Lookahead("auto")
    node = SlowNode(steps=5, always=20)  # these rows are remote at any width
    widths = run(lookahead, node, 4000)
    assert widths[-1] == 8
    at_eight = widths.count(8) / len(widths)
    assert at_eight > 0.7  # searches become rare


def test_it_stays_where_nothing_is_announced() -> None:
    assert set(run(Lookahead("auto"), SlowNode(steps=10**6), 1000, announced=False)) == {FIRST}


def test_it_stays_where_rows_are_never_late() -> None:
    assert set(run(Lookahead("auto"), SlowNode(steps=0), 10 * WINDOW)) == {FIRST}


def test_a_given_lookahead_stays() -> None:
    assert set(run(Lookahead(5), SlowNode(steps=100), 50)) == {5}
