"""Negatives that several nodes draw."""

from __future__ import annotations

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
            assert result["fallback"] == 0  # half of the rows are here, or come
            assert result["announced"] > 60 * (10 + 1)  # the ten of the node itself, and what was drawn
