"""`HashEmbedding` in a wrapped model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaps
import autoada
from tests.hash_clicks import CAPACITY, HashClicks, batches_of_ids, hash_clicks, rows_by_id, steps

Optimizers = list[torch.optim.Optimizer]

OPTIMIZERS: dict[str, tuple[bool, Callable[[HashClicks], Optimizers]]] = {
    "SGD": (True, lambda model: [torch.optim.SGD(model.parameters(), lr=0.5)]),
    "Adagrad": (True, lambda model: [torch.optim.Adagrad(model.parameters(), lr=0.1)]),
    "dense Adagrad": (
        False,
        lambda model: [torch.optim.Adagrad(model.parameters(), 0.1, initial_accumulator_value=0.1)],
    ),
    "SparseAdam": (
        True,
        lambda model: [
            torch.optim.SparseAdam([model.wide.weight, model.deep.weight], lr=0.1),
            torch.optim.Adam(model.mlp.parameters(), lr=0.01),
        ],
    ),
    "SGD with momentum and decay": (
        False,
        lambda model: [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)],
    ),
    "Adam with decay": (False, lambda model: [torch.optim.Adam(model.parameters(), 0.01, weight_decay=0.1)]),
    "RMSprop": (False, lambda model: [torch.optim.RMSprop(model.parameters(), lr=0.01)]),
}


def wrapped(name: str, model: HashClicks | None = None) -> tuple[autoada.AdaModel, Optimizers]:
    sparse, make = OPTIMIZERS[name]
    model = hash_clicks(sparse) if model is None else model
    optimizers = make(model)
    return autoada.AdaModel(model, optimizers), optimizers


def deep_of(model: autoada.AdaModel) -> autoada.HashEmbedding:
    table = model.module.get_submodule("deep")
    assert isinstance(table, autoada.HashEmbedding)
    return table


def plain(name: str) -> tuple[HashClicks, Optimizers]:
    sparse, make = OPTIMIZERS[name]
    model = hash_clicks(sparse)
    return model, make(model)


def assert_equal_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("loader", [False, True], ids=["batches", "loader with lookahead"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_plain_pytorch(name: str, loader: bool) -> None:
    model, optimizers = plain(name)
    batches = batches_of_ids(12)
    expected = steps(model, optimizers, batches)
    ada, own = wrapped(name)
    found = steps(ada, own, autoada.AdaDataLoader(batches, lookahead=3, model=ada) if loader else batches)
    assert found == pytest.approx(expected, rel=1e-6)
    assert_equal_states(model.state_dict(), ada.state_dict())
    ada.close()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("save", ["plain", "wrapped"])
@pytest.mark.parametrize("load", ["plain", "wrapped", "wrapped with other rows", "wrap"])
def test_states_of_model_and_optimizer_go_on_in_either_world(name: str, save: str, load: str) -> None:
    batches = batches_of_ids(12)
    expected_model, optimizers = plain(name)
    expected = steps(expected_model, optimizers, batches)

    first, optimizers = plain(name) if save == "plain" else wrapped(name)
    steps(first, optimizers, batches[:6])
    state, states = copy.deepcopy((first.state_dict(), [each.state_dict() for each in optimizers]))
    second, own = plain(name) if load in ("plain", "wrap") else wrapped(name)
    if load == "wrapped with other rows":
        steps(second, own, batches[11:3:-1])
    second.load_state_dict(state)
    for optimizer, given in zip(own, states, strict=True):
        optimizer.load_state_dict(given)
    if load == "wrap":
        second = autoada.AdaModel(second, own)
    found = steps(second, own, batches[6:])
    assert found == pytest.approx(expected[6:], rel=1e-5)
    final = second.state_dict()
    for table in ("wide", "deep"):
        rows = rows_by_id(final, table)
        for number, row in rows_by_id(expected_model.state_dict(), table).items():
            assert rows[number] == pytest.approx(row, rel=1e-4, abs=1e-5)
    for model in (first, second):
        if isinstance(model, autoada.AdaModel):
            model.close()


def test_unwrapped_model_is_a_plain_model_that_trains_on() -> None:
    ada, own = wrapped("Adagrad")
    batches = batches_of_ids(6)
    steps(ada, own, batches)
    model: Any = autoada.unwrap(ada)
    new = torch.tensor([[-1, -2, -3]])
    assert type(model.deep.weight) is nn.Parameter
    assert torch.equal(model(batches[0][0]), ada(batches[0][0]))
    assert torch.equal(model(new), ada(new))
    before = ada.state_dict()
    steps(model, [torch.optim.SGD(model.parameters(), lr=0.5)], batches)
    assert_equal_states(before, ada.state_dict())
    ada.close()


def test_a_loaded_state_replaces_all_rows() -> None:
    ada, own = wrapped("Adagrad")
    batches = batches_of_ids(6)
    steps(ada, own, batches)
    ada.load_state_dict(hash_clicks().state_dict())
    with torch.no_grad():
        assert torch.equal(ada(batches[0][0]), hash_clicks()(batches[0][0]))
    ada.close()


REFUSED: dict[str, Callable[[Any, Tensor], Any]] = {
    "norm": lambda model, weight: weight.norm(),
    "row": lambda model, weight: weight[3].clone(),
    "rows": lambda model, weight: weight[2:5] * 2,
    "fill": lambda model, weight: nn.init.zeros_(weight),
    "write": lambda model, weight: weight.data.index_fill_(0, torch.tensor([1]), 0.0),
    "linear": lambda model, weight: torch.nn.functional.linear(torch.ones(1, 4), weight),
    "copy": lambda model, weight: copy.deepcopy(weight),
    "state": lambda model, weight: model.deep.load_state_dict(hash_clicks().deep.state_dict()),
}


@pytest.mark.parametrize("operation", REFUSED)
def test_operations_on_the_weight_are_refused_by_name(operation: str) -> None:
    ada, own = wrapped("SGD")
    steps(ada, own, batches_of_ids(2))
    before = ada.state_dict()
    with torch.no_grad(), pytest.raises(RuntimeError, match="HashEmbedding in the parameter server"):
        REFUSED[operation](ada, deep_of(ada).weight)
    assert_equal_states(before, ada.state_dict())
    ada.close()


def test_lookups_of_numbered_rows_are_possible() -> None:
    ada, _ = wrapped("SGD")
    ids = torch.tensor([5, -5, 5])
    deep = deep_of(ada)
    rows = deep.rows_of(ids)
    assert torch.equal(deep.weight[rows], deep(ids))
    assert torch.equal(ada.keys_of("deep.weight", ids), ada.node.table("deep.weight").keys(rows))
    ada.close()


def test_announced_rows_are_part_of_the_state_when_they_are_read() -> None:
    ada, _ = wrapped("SGD")
    ids = torch.tensor([5, -5])
    ada.keys_of("deep.weight", ids)
    assert ada.state_dict()["deep.ids"].tolist() == []
    deep_of(ada)(ids)
    assert ada.state_dict()["deep.ids"].tolist() == [5, -5]
    assert not [table.name for table in ada.node.tables if table.name.endswith(".ids")]
    ada.close()


def test_more_ids_than_rows_are_refused() -> None:
    model = hash_clicks(capacity=5)
    ada = autoada.AdaModel(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(adaps.AdapsError, match=r"wide.weight.* 5"):
        ada(torch.arange(6).view(2, 3))
    ada.close()


def test_hand_written_keys_are_ids() -> None:
    batches = batches_of_ids(8)
    model, optimizers = plain("Adagrad")
    expected = steps(model, optimizers, batches)
    ada, own = wrapped("Adagrad")
    keys = {ada.module.wide: lambda batch: batch[0], "deep": lambda batch: batch[0] * 7 + 1}
    loader = autoada.AdaDataLoader(batches, lookahead=3, keys=keys, model=ada)
    assert steps(ada, own, loader) == pytest.approx(expected, rel=1e-6)
    assert_equal_states(model.state_dict(), ada.state_dict())
    ada.close()


def test_prediction_finds_the_rows_of_ids() -> None:
    ada, own = wrapped("Adagrad")
    batches = batches_of_ids(12)
    loader = autoada.AdaDataLoader(batches, lookahead=3, model=ada)
    steps(ada, own, loader)
    assert "rows predicted" in loader.summary()
    assert "program" in loader.explain(batches[0])
    ada.close()


def test_checkpoint_continues_bit_by_bit(tmp_path: Path) -> None:
    batches = batches_of_ids(12)
    for name in ("Adagrad", "SGD with momentum and decay"):
        ada, own = wrapped(name)
        steps(ada, own, batches[:6])
        ada.checkpoint(tmp_path / name)
        expected = steps(ada, own, batches[6:])
        after = ada.state_dict()
        ada.close()
        other, own = wrapped(name)
        steps(other, own, batches[11:8:-1])
        other.restore(tmp_path / name)
        assert steps(other, own, batches[6:]) == pytest.approx(expected, rel=1e-6)
        for table in ("wide", "deep"):
            rows = rows_by_id(other.state_dict(), table)
            for number, row in rows_by_id(after, table).items():
                assert rows[number] == pytest.approx(row, rel=1e-6)
        other.close()


class Tied(nn.Module):
    def __init__(self, other: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table = autoada.HashEmbedding(4, CAPACITY, seed=0)
        self.other: Any = other()
        self.other.weight = self.table.weight


@pytest.mark.parametrize(
    "other",
    [
        lambda: nn.Embedding(CAPACITY, 4),
        lambda: autoada.HashEmbedding(4, CAPACITY),
        lambda: nn.Linear(4, 400),
    ],
)
def test_a_tied_weight_is_refused(other: Callable[[], nn.Module]) -> None:
    model = Tied(other)
    with pytest.raises(ValueError, match=r"'other.weight' is also the weight of a HashEmbedding"):
        autoada.AdaModel(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_module_in_two_places_is_one_table() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.other = autoada.HashEmbedding(4, 10, seed=0)

        def forward(self, ids: Tensor) -> Any:
            return self.one(ids) + self.other(ids + 1)

    model = Twice()
    expected = model(torch.arange(3))
    model = Twice()
    ada = autoada.AdaModel(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(ada(torch.arange(3)), expected)
    assert set(ada.state_dict()) == {"one.weight", "one.ids", "other.weight", "other.ids"}
    ada.load_state_dict(ada.state_dict())
    ada.close()


def test_drawn_samples_are_refused() -> None:
    with pytest.raises(TypeError, match="HashEmbedding, whose ids cannot be drawn"):
        autoada.NegativeSampler(hash_clicks().wide, 3)


def test_a_state_without_the_ids_lacks_them_as_in_plain_pytorch() -> None:
    plain, net = hash_clicks(), hash_clicks()
    ada = autoada.AdaModel(net)
    state = {name: value for name, value in plain.state_dict().items() if not name.endswith("ids")}
    found = ada.load_state_dict(state, strict=False)
    assert found == plain.load_state_dict(state, strict=False)
    assert found.missing_keys
    ada.close()
