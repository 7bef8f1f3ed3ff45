"""Dense parameters of workers that train together: when they are pulled, and manual writes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoada

Trainee = tuple[Any, torch.optim.Optimizer]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items = nn.Embedding(8, 3)
        self.out = nn.Linear(3, 1)

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.items(ids)).square().mean()


@pytest.fixture
def trainees() -> Iterator[list[Trainee]]:
    """Two workers of a node, with a model each."""
    yield from two_workers(lambda net: torch.optim.SGD(net.parameters(), lr=0.5))


def two_workers(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> Iterator[list[Trainee]]:
    nets = [Net(), Net()]
    optimizers = [optimizer(net) for net in nets]
    with autoada.create_node(nets[0], optimizers[0], workers=2) as node, ThreadPoolExecutor(2) as pool:

        def wrap(number: int) -> autoada.AdaModel:
            return autoada.AdaModel(nets[number], optimizers[number], node=node, worker=number)

        models = list(pool.map(wrap, range(2)))
        yield list(zip(models, optimizers, strict=True))
        list(pool.map(autoada.AdaModel.close, models))


def step(trainee: Trainee) -> None:
    model, optimizer = trainee
    optimizer.zero_grad()
    model(torch.arange(4)).backward()
    optimizer.step()


def bias(trainee: Trainee) -> float:
    return float(trainee[0].module.out.bias.detach())


def call(trainee: Trainee) -> float:
    """The bias that a training call finds."""
    trainee[0](torch.arange(4))
    return bias(trainee)


def evaluate(trainee: Trainee) -> float:
    """The bias during an evaluation, which always pulls the latest values."""
    trainee[0].eval()
    trainee[0](torch.arange(4))
    trainee[0].train()
    return bias(trainee)


def count_pulls(trainee: Trainee, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    dense = trainee[0]._wrapped.dense[0]
    pulls: list[None] = []
    pull = dense.pull

    def counted() -> None:
        pulls.append(None)
        pull()

    monkeypatch.setattr(dense, "pull", counted)
    return pulls


def test_a_call_pulls_if_another_worker_has_changed_them(
    trainees: list[Trainee], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = trainees
    step(one)
    pulls = count_pulls(one, monkeypatch)
    left = bias(one)
    assert call(one) == left
    assert pulls == []
    step(one)
    assert bias(one) != left, "its own effect is shown at once"
    assert pulls == []
    step(other)
    assert call(one) == bias(other)
    assert len(pulls) == 1
    evaluate(one)
    assert len(pulls) == 2


def test_what_was_written_by_hand_stays_and_others_get_it_with_the_next_step(trainees: list[Trainee]) -> None:
    one, other = trainees
    step(one)
    with torch.no_grad():
        one[0].module.out.bias += 100
    assert call(one) == bias(one) > 90
    assert evaluate(other) < 10
    step(one)
    assert evaluate(other) == bias(one)


def test_what_all_wrote_by_hand_and_what_one_did_meanwhile_add_up(trainees: list[Trainee]) -> None:
    one, other = trainees
    step(one)
    evaluate(other)
    before = bias(one)
    for trainee in trainees:
        trainee[0].module.out.bias.data += 100
    step(other)
    theirs = bias(other) - before - 50  # a step, after this worker's half of the common change
    assert theirs != 0
    assert call(one) == pytest.approx(before + 100 + theirs, abs=1e-4)
    assert evaluate(other) == bias(one)


def test_parameters_that_were_given_other_memory_are_taken_over(trainees: list[Trainee]) -> None:
    one, other = trainees
    step(one)
    one[0].module.out.bias.data = torch.tensor([100.0])
    assert call(one) == 100
    step(one)
    assert evaluate(other) == bias(one) != 100
    one[0].module.out.bias.data = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"'out\.bias' was given torch\.float64 of shape \(1,\) on cpu"):
        call(one)
    one[0].module.out.bias.data = torch.zeros(1)


def test_gradients_are_summed_as_float32_with_any_default_dtype() -> None:
    def optimizer(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.ASGD(net.parameters(), lr=0.5, lambd=0.0)

    plain = Net()
    own = optimizer(plain)
    (2 * plain(torch.arange(4))).backward()  # as much as both workers' gradients
    own.step()
    for trainees in two_workers(optimizer):
        torch.set_default_dtype(torch.bfloat16)
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(step, trainees))
        finally:
            torch.set_default_dtype(torch.float32)
        for model, _ in trainees:
            torch.testing.assert_close(dict(model.module.named_parameters())["out.weight"], plain.out.weight)
