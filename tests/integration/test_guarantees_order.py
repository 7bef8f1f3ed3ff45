"""Read your writes and monotonic reads on real processes, while replicas come and go."""

import pytest

from tests.conftest import Launch

PAIRS = 8_000
FULL_PAIRS = 1_000_000


@pytest.mark.parametrize("owner_has_intent", [True, False])
def test_reads_follow_writes_around_replicas(launch: Launch, full: bool, owner_has_intent: bool) -> None:
    pairs = FULL_PAIRS if full else PAIRS
    lives = [(nodes, "adaptive", owner_has_intent, pairs) for nodes in (4, 2)]
    ranks = launch("tests.integration.guarantees.pairs", 4, 3600 if full else 240, workers=2, lives=lives)
    for life, (nodes, *_) in enumerate(lives):
        totals = [rank["lives"][life] for rank in ranks[:nodes]]
        assert sum(total["pairs"] for total in totals) >= pairs
        for name in ("replicas", "replicas_dropped", "pulled_remote", "pulled_replica"):
            assert sum(total[name] for total in totals) > pairs / 100, name
        print([{name: round(value, 1) for name, value in total.items()} for total in totals])
        if not owner_has_intent:
            assert sum(total["relocations"] for total in totals) > pairs / 1000


def test_reads_follow_writes_under_every_other_technique(launch: Launch, full: bool) -> None:
    pairs = FULL_PAIRS // 10 if full else PAIRS // 4
    techniques = ("replication", "relocation", "static", "full_replication")
    lives = [(3, technique, False, pairs) for technique in techniques]
    ranks = launch("tests.integration.guarantees.pairs", 3, 3600 if full else 240, workers=2, lives=lives)
    for life in range(len(lives)):
        assert sum(rank["lives"][life]["pairs"] for rank in ranks) >= pairs
