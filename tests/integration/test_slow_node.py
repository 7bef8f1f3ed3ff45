"""A node that is slower than the others does not fill their memory, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Launch

MODULE = "tests.integration.guarantees.slow_node"
LIMIT = 4 << 20


def test_rows_for_a_node_that_takes_nothing_stay_where_they_are(launch: Launch) -> None:
    fast, slow = launch(MODULE, 2, rows=1024, limit=LIMIT, seconds=0)
    assert fast["right"]
    assert slow["right"]
    # All rows that the other node holds, half of which it owns, take 32 MB.
    assert fast["grown"] < LIMIT + (16 << 20)
    assert fast["stats"]["unsent_full_micros"] > 0
    assert fast["stats"]["refreshes_held_back"] > 0


def test_memory_stays_within_the_limits_while_another_node_runs_a_tenth_of_the_time(
    launch: Launch, full: bool
) -> None:
    seconds = 600 if full else 2
    fast, slow = launch(MODULE, 2, seconds + 240, rows=1024, limit=LIMIT, seconds=seconds)
    assert fast["right"]
    assert slow["right"]
    assert min(fast["pushed"]) > 0
    assert fast["grown"] < 2 * LIMIT + (64 << 20)
