"""No update is lost or doubled, and a visibility point shows all of them, on real processes and threads."""

import adaps
from tests.conftest import Launch


def test_sums_are_exact_under_every_technique_and_size(launch: Launch, full: bool) -> None:
    ranks = launch(
        "tests.integration.guarantees.sums",
        4,
        3600 if full else 240,
        nodes=[1, 2, 3, 4],
        workers=[1, 2, 4],
        techniques=adaps.TECHNIQUES,
        steps=600 if full else 60,
        seed=1,
    )
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


def test_everything_is_visible_after_sync_barrier_sync(launch: Launch, full: bool) -> None:
    lives = [(4, "adaptive"), (2, "adaptive"), (2, "replication")]
    ranks = launch(
        "tests.integration.guarantees.visibility",
        4,
        3600 if full else 240,
        lives=lives,
        keys=20_000,
        rounds=2_000 if full else 40,
        pushed=400,
    )
    for number, (nodes, _) in enumerate(lives):
        for rank in ranks[:nodes]:
            assert rank["lives"][number]["misses"] == 0
            assert rank["lives"][number]["replicas"] > 40
