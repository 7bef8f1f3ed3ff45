"""Optimizer state goes into the server of two nodes and comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .autoada_ranks.optimizer_state import OPTIMIZERS, STEPS, numbers, partly_frozen, train, trained, unfrozen
from .autoada_ranks.task import as_lists

Launch = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("technique", ["adaptive", "static", "replication"])
def test_two_nodes_go_on_from_the_state_of_a_plain_training_and_give_it_back(
    launch: Launch, technique: str
) -> None:
    ranks = launch("tests.integration.autoada_ranks.optimizer_state", 2, technique=technique)
    for name in OPTIMIZERS:
        model, optimizer = trained(name, seed=0, steps=STEPS)
        for rank in ranks:
            assert_equal(rank[name]["taken over"], numbers(optimizer))
        assert_equal(ranks[0][name]["loaded"], numbers(trained(name, seed=7, steps=2)[1]))
        if name == "Adam":  # counts a step of each node by its own gradients
            continue
        train(model, optimizer, 1, scale=0.5)
        assert_equal(ranks[0][name]["trained"], numbers(optimizer))
        for rank in ranks:
            assert_equal(rank[name]["weights"], as_lists(model.state_dict()))
    model, optimizer = partly_frozen()
    expected = unfrozen(model, optimizer, lambda model: train(model, optimizer, 1, scale=0.5))
    for rank in ranks:
        assert_equal(rank["unfrozen"], expected)


def assert_equal(numbers: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert numbers.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.allclose(torch.tensor(numbers[name]), torch.tensor(values), atol=1e-5), name
