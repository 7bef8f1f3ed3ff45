"""Guarantees between real processes and threads: sums, order, visibility, states, owners and starts."""

from graphlib import TopologicalSorter
from itertools import pairwise, product
from pathlib import Path

import pandas as pd
import pytest

import adaps
from adabench.analysis.life_of_keys import draw_life_of_keys, lives
from tests.conftest import Launch

from .guarantees import calls, optimizers, pairs, sets, starts, states, sums, traced, visibility

COUNTED = ("replicas", "pulled_local", "pulled_replica", "pulled_remote", "set_remote", "pushed_replica")
PAIRS = 8_000
FULL_PAIRS = 1_000_000


@pytest.fixture
def run(launch: Launch, full: bool) -> Launch:
    """`launch`, which may take an hour with ``--full``."""
    seconds = 3600 if full else 240
    return lambda work, ranks, /, **given: launch(work, ranks, seconds, **given)


def test_sums_are_exact_under_every_technique_and_size(run: Launch, full: bool) -> None:
    lives = list(product((4, 3, 2, 1), (1, 2, 4), adaps.TECHNIQUES))
    ranks = run(sums.main, 4, lives=lives, steps=600 if full else 60, seed=1)
    assert all(rank["pushed"] > 0 for rank in ranks)
    moved = ranks[1]["moved"]
    for technique in ("adaptive", "replication", "full_replication"):
        assert moved[f"{technique} replicas"] > 0
        assert moved[f"{technique} deltas_sent"] > 0
    for technique in ("adaptive", "relocation"):
        assert moved[f"{technique} relocations"] > 0
    for technique in ("replication", "static", "full_replication"):
        assert moved[f"{technique} relocations"] == 0
    for technique in ("static", "relocation"):
        assert moved[f"{technique} replicas"] == 0


def test_everything_is_visible_after_sync_barrier_sync(run: Launch, full: bool) -> None:
    lives = [(4, "adaptive"), (2, "adaptive"), (2, "replication")]
    ranks = run(visibility.main, 4, lives=lives, keys=20_000, rounds=2_000 if full else 40, pushed=400)
    for number, (nodes, _) in enumerate(lives):
        for rank in ranks[:nodes]:
            assert rank["lives"][number]["misses"] == 0
            assert rank["lives"][number]["replicas"] > 40


@pytest.mark.parametrize("owner_has_intent", [True, False])
def test_reads_follow_writes_around_replicas(run: Launch, full: bool, owner_has_intent: bool) -> None:
    count = FULL_PAIRS if full else PAIRS
    lives = [(nodes, "adaptive", owner_has_intent, count) for nodes in (4, 2)]
    ranks = run(pairs.main, 4, workers=2, lives=lives)
    for life, (nodes, *_) in enumerate(lives):
        totals = [rank["lives"][life] for rank in ranks[:nodes]]
        assert sum(total["pairs"] for total in totals) >= count
        for name in ("replicas", "replicas_dropped", "pulled_remote", "pulled_replica"):
            assert sum(total[name] for total in totals) > count / 100, name
        print([{name: round(value, 1) for name, value in total.items()} for total in totals])
        if not owner_has_intent:
            assert sum(total["relocations"] for total in totals) > count / 1000


def test_reads_follow_writes_under_every_other_technique(run: Launch, full: bool) -> None:
    count = FULL_PAIRS // 10 if full else PAIRS // 4
    techniques = ("replication", "relocation", "static", "full_replication")
    lives = [(3, technique, False, count) for technique in techniques]
    ranks = run(pairs.main, 3, workers=2, lives=lives)
    for life in range(len(lives)):
        assert sum(rank["lives"][life]["pairs"] for rank in ranks) >= count


def test_calls_with_duplicates_do_what_arrays_do(run: Launch, full: bool) -> None:
    lives = [
        (4, "adaptive", False),
        (4, "adaptive", True),
        (3, "relocation", False),
        (3, "replication", False),
    ]
    ranks = run(calls.main, 4, workers=2, lives=lives, steps=2_000 if full else 120, counted=COUNTED)
    # Which way a call takes is the schedule's choice; that all are taken is asked of all nodes and lives
    # together, for in the second one every node has replicas of every row.
    for name in COUNTED:
        assert sum(life[name] for rank in ranks for life in rank["lives"]) > 20, name


@pytest.mark.parametrize("technique", ["adaptive", "full_replication"])
def test_sets_beside_replicas_have_one_order(run: Launch, full: bool, technique: str) -> None:
    ranks = run(sets.main, 4, workers=2, technique=technique, steps=5_000 if full else 250)
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
    run: Launch, full: bool, technique: str
) -> None:
    ranks = run(states.main, 3, workers=2, technique=technique, steps=5_000 if full else 200)
    ends = [end for rank in ranks for end in rank["ends"]]
    written = [sum(end["mine"][row] for end in ends) for row in range(len(ends[0]["mine"]))]
    for end in ends:
        assert end["states"] == pytest.approx(written)
        assert end["sum"][0] == sum(each["sum"][1] for each in ends)
    name = "pushed_remote" if technique == "relocation" else "pushed_replica"
    assert sum(rank[name] for rank in ranks) > 50


def test_optimizer_state_is_that_of_one_node(run: Launch) -> None:
    lives = [(4, "adaptive"), (3, "static"), (2, "replication")]
    ranks = run(optimizers.main, 4, lives=lives)
    assert sum(rank["replica_gradients"] for rank in ranks) > 10_000
    for rank in ranks:
        for name, error in rank["largest"].items():
            # A sum of some thousand squares, added up in another order in 24 bits.
            assert error < (2e-3 if name == "accumulator" else 1e-5), (name, error)


def test_a_key_has_one_owner_at_a_time(run: Launch, tmp_path: Path) -> None:
    ranks = run(traced.main, 3, folder=str(tmp_path))
    frames = [pd.read_csv(tmp_path / f"{rank}.csv") for rank in range(3)]
    found = lives(frames)
    assert [life.key for life in found] == [0, 1, 2, 3]
    for kind, name in (("owned", "relocations"), ("replica", "replicas")):
        spans = [span for life in found for span in life.spans if span.kind == kind]
        first_touches = 4 if kind == "owned" else 0
        assert len(spans) == sum(rank[name] for rank in ranks) + first_touches
    for life in found:
        owned = sorted((span.begin, span.end, span.node) for span in life.spans if span.kind == "owned")
        assert all(before[1] <= after[0] and before[2] != after[2] for before, after in pairwise(owned))
        assert {span.node for span in life.spans if span.kind == "intent"} == {0, 1, 2}
        # The last node that wants the key keeps it.
        assert owned[-1][2] == 2
    assert not any(span.kind == "replica" for span in found[0].spans)
    assert any(span.kind == "replica" for span in found[2].spans)
    draw_life_of_keys(frames).savefig(tmp_path / "life.png", dpi=160)
    assert (tmp_path / "life.png").stat().st_size > 10_000


def test_every_start_beside_busy_loops_succeeds(run: Launch, full: bool) -> None:
    count = 200 if full else 4
    (outcome,) = run(starts.main, 1, nodes=4, loops=8, starts=count)
    assert outcome["starts"] == count
    print(outcome)
