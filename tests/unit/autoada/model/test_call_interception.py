"""The operations that count as a call of a wrapped model, not only its forward."""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import Callable, Container, Iterable, Sized
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoada
from autoada.model.wrapper import calls_of, training_state_of
from tests.plain_and_wrapped import click_batches, plain_and_wrapped, train

ROWS = 30
STEPS = 12

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Any, Batch], Tensor]


class Recommender(nn.Module):
    """As RecBole's, PyG's and PyKEEN's models are: forward is only one of several ways in."""

    kind = "recommender"

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4)
        self.encoder = nn.Sequential(nn.Embedding(ROWS, 4), nn.Flatten(), nn.Linear(16, 4))
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.calls = 0

    def forward(self, ids: Tensor) -> Any:
        return self.heads[0](self.items(ids).mean(1) + self.encoder(ids))

    def calculate_loss(self, batch: Batch) -> Tensor:
        ids, label = batch
        return self.bce(self(ids), label)

    def get_embedding(self, ids: Tensor) -> Any:
        return self.items(ids)

    def score(self, rows: Tensor) -> Any:
        return self.heads[1](rows.mean(1))

    def bce(self, logits: Tensor, label: Tensor) -> Tensor:
        self.calls += 1
        return F.binary_cross_entropy_with_logits(logits, label)

    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def spread(self, label: Tensor) -> float:
        return float(label.std())

    def fit(self, loader: Any, optimizer: torch.optim.Optimizer) -> list[float]:
        return train(self, optimizer, loader, past_the_wrapper)

    @classmethod
    def make(cls) -> Recommender:
        return cls()


def by_method(model: Any, batch: Batch) -> Tensor:
    loss: Tensor = model.calculate_loss(batch)
    return loss


def by_several_methods(model: Any, batch: Batch) -> Tensor:
    rows = model.get_embedding(batch[0])
    loss: Tensor = model.bce(model.score(rows), batch[1])
    return loss


def by_modules(model: Any, batch: Batch) -> Tensor:
    logits = model.heads[0](model.encoder(batch[0]))
    return F.binary_cross_entropy_with_logits(logits, batch[1])


def with_helpers(model: Any, batch: Batch) -> Tensor:
    model.spread(batch[1])
    assert model.size() > 0
    loss: Tensor = model.bce(model(batch[0]), batch[1])
    return loss


def past_the_wrapper(model: Any, batch: Batch) -> Tensor:
    inner = getattr(model, "module", model)
    return F.binary_cross_entropy_with_logits(inner(batch[0]), batch[1])


WAYS = [by_method, by_several_methods, by_modules, with_helpers, past_the_wrapper]


@pytest.mark.parametrize("loss_of", WAYS)
def test_losses_are_plain_pytorchs_and_every_read_is_announced(
    loss_of: Loss, caplog: pytest.LogCaptureFixture
) -> None:
    plain = recommender()
    expected = train(plain, sgd(plain), batches(), loss_of)
    net = recommender()
    optimizer = sgd(net)
    model = autoada.AdaModel(net, optimizer)
    observer = Observer(model)
    with caplog.at_level(logging.WARNING, "autoada"):
        losses = train(model, optimizer, autoada.AdaDataLoader(batches(), 2), loss_of)
    assert losses == pytest.approx(expected, abs=1e-5)
    assert caplog.messages == []
    assert len(observer.read) == STEPS
    late = {clock for clock, keys in observer.read.items() if keys != observer.announced.get(clock)}
    assert late <= ({0} if loss_of is by_several_methods else set())
    assert model.worker.current_clock >= STEPS
    model.close()


def test_a_method_that_trains_is_no_call_but_what_it_calls_is() -> None:
    plain = recommender()
    expected = plain.fit(batches(), sgd(plain))
    net = recommender()
    optimizer = sgd(net)
    model = autoada.AdaModel(net, optimizer)
    observer = Observer(model)
    assert model.fit(autoada.AdaDataLoader(batches(), 2), optimizer) == pytest.approx(expected, abs=1e-5)
    assert len(observer.read) == STEPS
    assert observer.read == {clock: keys for clock, keys in observer.announced.items() if clock < STEPS}
    model.close()


def test_what_a_method_reads_in_evaluation_is_pulled_and_moves_no_clock() -> None:
    model = autoada.AdaModel(recommender()).eval()
    assert model.get_embedding(torch.tensor([[3, 3]])).shape == (1, 2, 4)
    assert model.worker.current_clock == 0
    model.close()


def test_class_methods_properties_and_data_stay_what_they_are() -> None:
    net = recommender()
    model = autoada.AdaModel(net)
    assert isinstance(model.make(), Recommender)
    assert model.kind == "recommender"
    assert model.encoder is net.encoder
    assert model.heads is net.heads
    assert model.get_embedding.__name__ == "get_embedding"
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = model.missing
    model.close()


def test_a_wrapped_model_has_the_signature_and_the_attributes_of_the_plain_one() -> None:
    plain = Recommender()
    names = dir(plain)
    model = autoada.AdaModel(plain)
    for value in (model.forward, type(model).forward):
        assert inspect.signature(value).parameters["ids"].annotation == "Tensor"
    assert set(names) <= set(dir(model))
    dict(inspect.getmembers(model))
    assert type(model).__name__ == "AdaModel"
    assert isinstance(model, autoada.AdaModel)
    with pytest.raises(TypeError, match="has no len"):
        len(cast(Any, model))
    assert not isinstance(model, (Container, Iterable, Sized))
    model.close()


class Scorer(nn.Module):
    """Has a special method that no container of torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4)
        self.out = nn.Linear(16, 1)

    def __matmul__(self, ids: Tensor) -> Any:
        return self.out(self.items(ids).flatten(1))


def layers() -> list[nn.Module]:
    return [nn.Embedding(ROWS, 4), nn.Flatten(), nn.Linear(16, 1)]


def by_index(model: Any, ids: Tensor) -> Any:
    return model[-1](model[1](model[0](ids)))


def by_loop(model: Any, ids: Tensor) -> Any:
    x = ids
    for layer in model:
        x = layer(x)
    return x


def by_slice(model: Any, ids: Tensor) -> Any:
    return model[len(model) - 1](model[:2](ids))


def by_key(model: Any, ids: Tensor) -> Any:
    assert "table" in model
    assert len(model) == 2
    return model["out"](model["table"](ids).flatten(1))


def by_children(model: Any, ids: Tensor) -> Any:
    x = ids
    for layer in model.children():
        x = layer(x)
    return x


def by_items(model: Any, ids: Tensor) -> Any:
    table, out = (layer for _, layer in model.items())
    return out(table(ids).flatten(1))


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (lambda: nn.Sequential(*layers()), by_children),
        (lambda: nn.ModuleDict({"table": nn.Embedding(ROWS, 4), "out": nn.Linear(16, 1)}), by_items),
        (lambda: nn.Sequential(*layers()), by_index),
        (lambda: nn.Sequential(*layers()), by_loop),
        (lambda: nn.Sequential(*layers()), by_slice),
        (lambda: nn.ModuleList(layers()), by_index),
        (lambda: nn.ModuleList(layers()), by_loop),
        (lambda: nn.ModuleDict({"table": nn.Embedding(ROWS, 4), "out": nn.Linear(16, 1)}), by_key),
        (Scorer, operator.matmul),
    ],
)
def test_special_methods_are_those_of_the_plain_model(
    make: Callable[[], nn.Module], call: Callable[[Any, Tensor], Any], caplog: pytest.LogCaptureFixture
) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
        given: Any = batches()
        if isinstance(model, autoada.AdaModel):
            observers.append(Observer(model))
            given = autoada.AdaDataLoader(given, 2)
        return train(
            model,
            optimizer,
            given,
            lambda model, batch: F.binary_cross_entropy_with_logits(call(model, batch[0]), batch[1]),
        )

    observers: list[Observer] = []
    with caplog.at_level(logging.WARNING, "autoada"):
        plain, wrapped = plain_and_wrapped(make, sgd, run)
    assert wrapped == pytest.approx(plain, abs=1e-5)
    assert caplog.messages == []
    (observer,) = observers
    assert len(observer.read) == STEPS
    late = {clock for clock, keys in observer.read.items() if keys != observer.announced.get(clock)}
    assert late <= {0}


def test_an_exception_inside_a_call_leaves_the_next_one_a_call() -> None:
    model = autoada.AdaModel(recommender())
    for call in (model, model.get_embedding, model.encoder, model.module):
        with pytest.raises(IndexError, match="does not exist"):
            call(torch.full((1, 4), ROWS))
        assert training_state_of(model).calls == 0
        call(torch.zeros(1, 4, dtype=torch.int64))
        assert training_state_of(model).calls == 1
        training_state_of(model).expect(None)
    model.close()


def test_an_interrupted_call_of_a_module_leaves_the_next_one_a_call() -> None:
    """Hooks are not called when a call ends with Ctrl-C."""
    net = recommender()
    model = autoada.AdaModel(net)
    ids = torch.zeros(1, 4, dtype=torch.int64)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for first in (net, model.encoder):
        handle = net.encoder[2].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            first(ids)
        handle.remove()
        for call in (first, model):
            calls_of(model).abandon_call()
            training_state_of(model).expect(None)
            call(ids)
            assert training_state_of(model).calls == 1
    model.close()


def test_copies_of_the_model_have_no_hooks() -> None:
    model = autoada.AdaModel(recommender())
    model.encoder(torch.zeros(1, 4, dtype=torch.int64))
    plain = autoada.unwrap(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in plain.modules())
    assert model.module._forward_hooks
    model.close()


class Observer:
    """Records, between the model and its worker, the rows announced for each clock and the rows pulled."""

    def __init__(self, model: Any) -> None:
        self.announced: dict[int, set[int]] = {}
        self.read: dict[int, set[int]] = {}
        self._worker = model.worker
        self._dense = model.node.tables[-1].first_key
        training_state_of(model).worker = cast("Any", self)
        for table in model.tables.values():
            table.rows.worker = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def intent(self, keys: Tensor, start: int, end: int | None = None) -> None:
        if end is None:
            self.announced.setdefault(start, set()).update(keys.tolist())
        self._worker.intent(keys, start, start + 1 if end is None else end)

    def pull(self, keys: Tensor, out: Tensor) -> None:
        self.read.setdefault(self._worker.current_clock, set()).update(keys.tolist())
        self._worker.pull(keys, out)


def recommender() -> Recommender:
    torch.manual_seed(0)
    return Recommender()


def batches() -> list[Batch]:
    return click_batches(ROWS, STEPS, 8)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)
