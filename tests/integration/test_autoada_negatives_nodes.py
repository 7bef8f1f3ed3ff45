"""Negatives that several nodes draw, and the messages that they cause."""

from collections.abc import Callable
from typing import Any

import pytest

import adaps

Launch = Callable[..., list[dict[str, Any]]]


def test_two_nodes_train_on_what_each_draws(launch: Launch) -> None:
    results = launch("tests.integration.autoada_ranks.negatives", 2)
    for scheme in adaps.SAMPLING_SCHEMES:
        first, second = (result[scheme] for result in results)
        assert first["sum"] == pytest.approx(second["sum"], abs=1e-4)  # both see what both have pushed
        for result in (first, second):
            assert result["rows"] == 60 * 20
            assert result["fallback"] == 0  # half of the rows are local or arrive in time
            assert result["announced"] > 60 * (10 + 1)  # the node's own ten rows, and the drawn ones


def test_local_draws_send_a_fifth_of_what_naive_ones_do(launch: Launch) -> None:
    """The bytes for reading and changing remote rows; all rows but the drawn ones are local."""
    steps, nodes = 60, 4
    results = launch(
        "tests.integration.autoada_ranks.drawn_bytes", nodes, steps=steps, schemes=["naive", "local"]
    )
    sent, elsewhere = {}, {}
    for scheme in ("naive", "local"):
        counted = [result[scheme] for result in results]
        sent[scheme] = sum(one["bytes_sent_request"] + one["bytes_sent_answer"] for one in counted)
        elsewhere[scheme] = sum(one["pulled_remote"] for one in counted)
        assert sum(one["sampled_fallback"] for one in counted) == 0
    assert elsewhere["naive"] > nodes * steps * 64 / 3  # three in four of which belong to other nodes
    # each was read with its row, and each change has 32 floats
    assert sent["naive"] > 2 * 32 * 4 * elsewhere["naive"]
    assert 5 * sent["local"] <= sent["naive"]
