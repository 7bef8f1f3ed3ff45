"""Trying several initial weights: who wins, and what cannot be tried. Several nodes: tests/integration."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoada as aa
from autoada.model.initialization import _Score, _survivors

DATA = torch.linspace(-1, 1, 32).reshape(8, 4)


class Net(nn.Module):
    """A model whose initial quality follows from its seed."""

    calls: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.counted = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        with torch.no_grad():
            self.linear.weight.fill_(1 + abs(seed - 5))

    def forward(self, batch: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.linear(batch) + self.counted.sum().float()  # type: ignore[no-any-return]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02)


def square(model: nn.Module, batch: Tensor) -> Tensor:
    error: Tensor = model(batch) - batch.sum(1, keepdim=True)
    return error.square().mean()


def selected(**given: Any) -> aa.Selection:
    batches = [DATA[:4], DATA[4:]]
    return aa.select_initialization(
        given.pop("make", Net), sgd, given.pop("loss", square), given.pop("batches", batches), **given
    )


def test_the_best_one_wins_after_the_steps_that_it_was_tried_for() -> None:
    before = torch.get_rng_state()
    result = selected(candidates=8, rungs=3, steps=4, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert result.seed == 5
    assert [len(rung) for rung in result.rungs] == [8, 4, 2]
    assert result.rungs[0].keys() == set(range(8))
    assert result.steps == 8 * 4 + 4 * 8 + 2 * 16
    model = Net(5)
    assert result.model.calls == 4 + 8 + 16
    torch.manual_seed(5)
    model = Net(5)
    optimizer = sgd(model)
    for number in range(28):
        optimizer.zero_grad()
        square(model, (DATA[:4], DATA[4:])[number % 2]).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], value), name


def test_equal_seeds_give_the_same_bits() -> None:
    first, again = (selected(candidates=3, rungs=2, seed=7) for _ in range(2))
    assert first.rungs == again.rungs
    assert first.seed == again.seed == 7
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])


def test_who_goes_on() -> None:
    scores = {
        1: _Score(0.5, 1.0, plateau=False),
        2: _Score(0.5001, 3.0, plateau=False),  # like 1, and has more to go
        3: _Score(0.4, 9.0, plateau=True),
        4: _Score(math.nan, math.nan, plateau=False),
        5: _Score(0.9, 1.0, plateau=False),
    }
    assert _survivors(scores) == [2, 1, 5]
    assert _survivors({1: scores[1], 3: scores[3]}) == [1]
    assert _survivors({3: scores[3], 6: _Score(0.3, 1.0, plateau=True)}) == [6]
    with pytest.raises(ValueError, match="none of the 1 candidates left has a finite loss"):
        _survivors({4: scores[4]})


def test_a_candidate_that_diverges_is_dropped() -> None:
    def make(seed: int) -> Net:
        net = Net(seed)
        if seed == 5:
            with torch.no_grad():
                net.linear.bias.fill_(math.inf)
        return net

    result = selected(make=make, candidates=8, rungs=1)
    assert math.isnan(result.rungs[0][5])
    assert result.seed in (4, 6)


def test_who_is_left_alone_has_won() -> None:
    result = selected(candidates=2, rungs=9, steps=2)
    assert len(result.rungs) == 1
    assert result.steps == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"candidates": 0}, "candidates is 0: it must be a whole number, 1 or more"),
        ({"rungs": 1.5}, "rungs is 1.5: it must be a whole number, 1 or more"),
        ({"steps": 1}, "steps is 1: it must be a whole number, 2 or more"),
        ({"seed": -1}, "seed is -1: it must be a whole number, 0 or more"),
        ({"batches": []}, "batches is empty: give an iterable"),
        ({"make": lambda seed: nn.Linear(4, 1 + seed)}, "make_model returns models of different shapes"),
    ],
)
def test_what_cannot_be_tried(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        selected(**({"seed": 1} | given))
