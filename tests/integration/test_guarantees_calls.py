"""Guarantees of single calls between real processes: duplicate keys, and sets of replicated rows."""

from graphlib import TopologicalSorter
from itertools import pairwise

import pytest

from tests.conftest import Launch

COUNTED = ("replicas", "pulled_local", "pulled_replica", "pulled_remote", "set_remote", "pushed_replica")


def test_calls_with_duplicates_do_what_arrays_do(launch: Launch, full: bool) -> None:
    lives = [
        (4, "adaptive", False),
        (4, "adaptive", True),
        (3, "relocation", False),
        (3, "replication", False),
    ]
    ranks = launch(
        "tests.integration.guarantees.calls",
        4,
        3600 if full else 240,
        workers=2,
        lives=lives,
        steps=2_000 if full else 120,
        counted=COUNTED,
    )
    # Which way a call takes is the schedule's choice; that all are taken is asked of all nodes and lives
    # together, for in the second one every node has replicas of every row.
    for name in COUNTED:
        assert sum(life[name] for rank in ranks for life in rank["lives"]) > 20, name


@pytest.mark.parametrize("technique", ["adaptive", "full_replication"])
def test_sets_beside_replicas_have_one_order(launch: Launch, full: bool, technique: str) -> None:
    ranks = launch(
        "tests.integration.guarantees.sets",
        4,
        3600 if full else 240,
        workers=2,
        technique=technique,
        steps=5_000 if full else 250,
    )
    assert sum(rank["set_remote"] for rank in ranks) > 250
    assert sum(rank["pulled_replica"] for rank in ranks) > 250
    workers = [rows for rank in ranks for rows in rank["seen"]]
    for row in range(len(workers[0])):
        after: dict[int, set[int]] = {}
        for worker in workers:
            for earlier, later in pairwise(worker[row]):
                after.setdefault(later, set()).add(earlier)
        assert len(after) > 50
        # Raises CycleError if two workers saw two sets in different orders, or one saw a value come back.
        tuple(TopologicalSorter(after).static_order())
        assert len({worker[row][-1] for worker in workers}) == 1


@pytest.mark.parametrize("technique", ["adaptive", "relocation", "replication", "full_replication"])
def test_optimizer_states_are_read_as_they_were_written_while_rows_move(
    launch: Launch, full: bool, technique: str
) -> None:
    ranks = launch(
        "tests.integration.guarantees.states",
        3,
        3600 if full else 240,
        workers=2,
        technique=technique,
        steps=5_000 if full else 200,
    )
    ends = [end for rank in ranks for end in rank["ends"]]
    written = [sum(end["mine"][row] for end in ends) for row in range(len(ends[0]["mine"]))]
    for end in ends:
        assert end["states"] == pytest.approx(written)
        assert end["sum"][0] == sum(each["sum"][1] for each in ends)
    name = "pushed_remote" if technique == "relocation" else "pushed_replica"
    assert sum(rank[name] for rank in ranks) > 50
