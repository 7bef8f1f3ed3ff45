"""Optimizer state goes into the server of two nodes and comes back."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import autoada
from tests.conftest import Launch

from .autoada_ranks.optimizer_state import (
    OPTIMIZERS,
    STEPS,
    numbers,
    on_rank,
    partly_frozen,
    train,
    trained,
    unfrozen,
)
from .autoada_ranks.task import as_lists, clicks


@pytest.mark.parametrize("technique", ["adaptive", "static", "replication"])
def test_two_nodes_go_on_from_the_state_of_a_plain_training_and_give_it_back(
    launch: Launch, technique: str
) -> None:
    ranks = launch(on_rank, 2, technique=technique)
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


def test_moving_a_parameter_whose_gradient_is_exchanged_to_another_optimizer_is_refused() -> None:
    def optimizers_of(model: Any) -> list[torch.optim.Optimizer]:
        tables = [model.wide.weight, model.deep.weight]
        return [torch.optim.SGD(tables, lr=0.1), torch.optim.Adam(model.mlp.parameters(), amsgrad=True)]

    def moves(worker: int) -> None:
        plain = clicks(worker)
        ours, own = optimizers_of(plain)
        model = autoada.AdaModel(plain, [ours, own], node=node, worker=worker)
        own.param_groups[0]["params"].pop()
        ours.add_param_group({"params": [plain.mlp[2].bias]})
        with pytest.raises(
            ValueError, match=r"'mlp\.2\.bias' has moved from Adam.*, to SGD: form the groups"
        ):
            ours.step()
        model.close()

    model = clicks()
    with autoada.create_node(model, optimizers_of(model), workers=2) as node, ThreadPoolExecutor(2) as pool:
        list(pool.map(moves, range(2)))


def assert_equal(numbers: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert numbers.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.allclose(torch.tensor(numbers[name]), torch.tensor(values), atol=1e-5), name
