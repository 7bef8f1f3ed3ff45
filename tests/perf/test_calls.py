"""The cost of calls: intent compared with a sort of its keys, a remote pull with its bytes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import adaps
from tests.perf.server import intent_calls, round_trips

if TYPE_CHECKING:
    from tests.conftest import Launch
    from tests.perf.conftest import Ratio
    from tests.perf.goals import Goal, Limit

KEYS = 10_000


def test_intent_costs_less_than_a_sort_of_its_keys(launch: Launch, goal: Goal, limit: Limit) -> None:
    """The cost for the calling thread, on two nodes because a single node needs no intent."""
    ranks = launch(intent_calls.main, 2, keys=KEYS, calls=60)
    print(ranks)
    assert all(rank["intents"] >= rank["distinct"] for rank in ranks)
    ratio = max(rank["ratio"] for rank in ranks)
    goal(f"intent calls of {KEYS:,} keys", ratio, at_most=0.5, unit="× the time of torch.unique")
    limit(f"intent calls of {KEYS:,} keys", ratio, 1.2)


# A round trip is wall time, which varies fourfold beside other work; a value above this means a failure.
CEILING = 40.0


@pytest.mark.parametrize(("keys", "bound"), [(1, 1.5), (1_000, 2)])
def test_pull_from_another_node_against_a_raw_socket(
    launch: Launch, goal: Goal, limit: Limit, keys: int, bound: float
) -> None:
    ours, _ = launch(round_trips.main, 2, keys=keys, length=16, rounds=15, trips=60)
    print(ours)
    # The raw exchange has exactly the bytes that the pull sent and received.
    assert ours["received"] >= keys * 16 * 4
    goal(f"pull of {keys:,} from another node", ours["ratio"], at_most=bound, unit="× a socket's round trip")
    limit(f"pull of {keys:,} from another node", ours["ratio"], CEILING)


def test_a_batch_is_deduplicated_quicker_than_torch_does(ratio: Ratio, limit: Limit) -> None:
    ids = torch.from_numpy(np.random.default_rng(0).zipf(1.3, 26 * 4096) % 1_000_000)
    speed = ratio(lambda: adaps.deduplicate(ids), lambda: torch.unique(ids, return_inverse=True))
    limit("de-duplication, in the time of torch.unique", 1 / speed, 1 / 1.5)
