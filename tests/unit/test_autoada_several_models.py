"""Several wrapped models: each gets intent for what it reads, in one loop and in loops of several threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoada

ROWS = 40
STEPS = 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 2)
        self.out = nn.Linear(2, 1)

    def forward(self, ids: Tensor) -> Any:
        return self.out(self.rows(ids)).squeeze(-1)


class Intents:
    """Stands before a model's worker: the clocks for which rows were announced."""

    def __init__(self, model: Any) -> None:
        self.starts: list[int] = []
        self._worker = model.worker
        model.worker = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def intent(self, keys: Tensor, start: int, end: int | None = None) -> None:
        self.starts.append(start)
        self._worker.intent(keys, start, start + 1 if end is None else end)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randint(0, ROWS, (6,), generator=generator), torch.rand(6, generator=generator))
        for _ in range(STEPS)
    ]


def separately(first: Any, second: Any, batch: Any) -> Any:
    return (first(batch[0]) + second(batch[0].flip(0)) - batch[1]).square().mean()


def one_only(first: Any, second: Any, batch: Any) -> Any:
    return (first(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("loss_of", [separately, one_only])
def test_models_of_one_loop_are_all_announced(
    loss_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    def train(wrap: bool) -> tuple[list[float], list[list[int]]]:
        torch.manual_seed(0)
        nets: list[Any] = [Net(), Net()]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        models = [autoada.AdaModel(*pair) for pair in zip(nets, optimizers, strict=True)] if wrap else nets
        intents = [Intents(model) for model in models] if wrap else []
        losses = []
        for batch in autoada.AdaDataLoader(batches(), 2) if wrap else batches():
            loss = loss_of(*models, batch)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        if wrap:
            for model in models:
                model.close()
        return losses, [intent.starts for intent in intents]

    with caplog.at_level(logging.WARNING, "autoada"):
        losses, starts = train(True)
    assert losses == pytest.approx(train(False)[0], abs=1e-5)
    assert sorted(set(starts[0])) == list(range(STEPS))
    assert sorted(set(starts[1])) == (list(range(STEPS)) if loss_of is separately else [])
    assert caplog.messages == []


def test_loops_of_two_threads_have_the_models_that_they_say() -> None:
    def train(model: Any) -> None:
        for ids, label in autoada.AdaDataLoader(batches(), 2, model=model):
            (model(ids) - label).square().mean().backward()

    models = [autoada.AdaModel(Net()) for _ in range(2)]
    intents = [Intents(model) for model in models]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, models))
        with pytest.raises(RuntimeError, match=r"thread made no AdaModel, and others made \d+: say which"):
            pool.submit(iter, autoada.AdaDataLoader(batches())).result()
    assert [sorted(set(intent.starts)) for intent in intents] == [list(range(STEPS))] * 2
    for model in models:
        model.close()


def test_a_loop_that_goes_back_to_training_mode_itself_is_announced_from_the_next_batch_on() -> None:
    model = autoada.AdaModel(Net())
    intents = Intents(model)
    model.eval()
    loader = autoada.AdaDataLoader(batches(), 2)
    steps = 0
    for ids, label in loader:
        model.train()
        (model(ids) - label).square().mean().backward()
        steps += 1
    assert steps == STEPS
    assert len(set(intents.starts)) >= STEPS - 2
    assert loader.epoch == 1
    model.close()
