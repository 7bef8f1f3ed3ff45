"""Arguments of the model's call that the batch alone does not decide."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autoada
from tests.unit.autoada.small_net import PAIR_ROWS as ROWS
from tests.unit.autoada.small_net import IntentLog
from tests.unit.autoada.small_net import pairs_of as batches


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4)
        self.cell = nn.GRU(4, 3)

    def forward(self, ids: Tensor, hidden: Tensor | None) -> Any:
        output, hidden = self.cell(self.items(ids).unsqueeze(0), hidden)
        return output.sum() + self.items(ids // 2).sum(), hidden


def rows_of(model: autoada.AdaModel, table: str, *ids: Tensor) -> list[int]:
    return model.keys_of(table, torch.cat(ids).unique()).tolist()


def test_a_state_that_is_carried_from_batch_to_batch_is_unknown_and_in_nobodys_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = autoada.AdaModel(Recurrent())
    announced = IntentLog(model)
    given = [batch[0] for batch in batches(10)]
    given[-1] = given[-1][:4]
    hidden = None
    for ids in autoada.AdaDataLoader(given, 2):
        loss, hidden = model(ids, None if hidden is None else hidden[:, : len(ids)].detach())
        loss.backward()
    last = announced.last
    for clock, ids in list(enumerate(given))[2:]:
        assert last[clock] == rows_of(model, "items.weight", ids, ids // 2)
    assert caplog.messages == []
    model.close()


class Ranking(nn.Module):
    def __init__(self, draws: bool = False) -> None:
        super().__init__()
        self.users = nn.Embedding(ROWS, 2)
        self.items = nn.Embedding(ROWS, 2)
        self.draws = draws

    def forward(self, users: Tensor, negatives: Tensor | None = None) -> Any:
        if negatives is None:
            negatives = torch.randint(0, ROWS, users.shape)
        return (self.users(users) * self.items(negatives)).sum()


def with_negatives(given: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(users, torch.randint(0, ROWS, users.shape)) for users in given]


def test_negatives_that_the_loop_draws_are_told_with_ways_out_that_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("autoada.loader.intent_source.SMALL_TABLE", 3)
    given = [batch[0] for batch in batches(10)]

    model = autoada.AdaModel(Ranking())
    announced = IntentLog(model)
    for users in autoada.AdaDataLoader(given, 2):
        model(users, torch.randint(0, ROWS, users.shape)).backward()
    wanted = {clock: rows_of(model, "users.weight", users) for clock, users in enumerate(given)}
    assert announced.last == wanted
    (told,) = caplog.messages
    assert told.startswith(
        "rows of 'items.weight' depend on parameters or on values that are not made from the batch"
    )
    assert "(argument 2 of the call at " in told
    assert "test_arguments.py:" in told
    assert "`model(users, torch.randint(0, ROWS, users.shape)).backward()`" in told
    assert "if the model's forward, the data set or its collate_fn draws them" in told
    model.close()

    caplog.clear()
    model = autoada.AdaModel(Ranking())
    announced = IntentLog(model)
    for users, negatives in autoada.AdaDataLoader(with_negatives(given), 2):  # drawn by the data set
        model(users, negatives).backward()
        clock = int(model.worker.current_clock)
        both = rows_of(model, "users.weight", users) + rows_of(model, "items.weight", negatives)
        assert announced.last[clock] == sorted(both)
    model.close()

    model = autoada.AdaModel(Ranking())
    announced = IntentLog(model)
    pulled = []
    for users in autoada.AdaDataLoader(given, 2):  # drawn by forward
        before = model.node.stats()["pulled_local"]
        model(users).backward()
        pulled.append(model.node.stats()["pulled_local"] - before)
    assert pulled == [len(announced.last[clock]) for clock in range(10)]
    assert caplog.messages == []
    model.close()


@pytest.mark.parametrize(
    "make",
    [torch.from_numpy, lambda array: torch.from_numpy(array).long() % ROWS, torch.as_tensor, torch.tensor],
    ids=["from_numpy", "cast", "as_tensor", "tensor"],
)
def test_arrays_of_the_batch_become_tensors_on_the_way(
    make: Callable[[Any], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(ROWS, 2)

        def forward(self, ids: Tensor) -> Any:
            return self.items(ids).sum()

    model = autoada.AdaModel(One())
    announced = IntentLog(model)
    given = [{"ids": batch[0].numpy(), "name": "x" * n} for n, batch in enumerate(batches(10))]
    loader = autoada.AdaDataLoader(given, 2)
    for batch in loader:
        model(make(batch["ids"])).backward()
    wanted = [rows_of(model, "items.weight", torch.tensor(batch["ids"])) for batch in given]
    assert announced.last == dict(enumerate(wanted))
    assert len(announced.calls) == 10
    assert "by access program" in loader.summary()
    assert caplog.messages == []
    model.close()


def test_names_that_the_loop_looks_up_are_refused_and_prepare_helps(caplog: pytest.LogCaptureFixture) -> None:
    vocabulary = {f"user {i}": i for i in range(ROWS)}
    given: list[dict[str, Any]] = [
        {"names": [f"user {i}" for i in users.tolist()], "label": label} for users, _, label in batches(8)
    ]

    def prepare(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.tensor([vocabulary[name] for name in batch["names"]]),), {}

    def loop(model: autoada.AdaModel, loader: Iterable[Any]) -> None:
        for batch in loader:
            args, kwargs = prepare(batch)
            model(*args, np.float32(1.0), **kwargs).backward()

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users = nn.Embedding(ROWS, 2)

        def forward(self, ids: Tensor, factor: float = 1.0) -> Any:
            return self.users(ids).sum() * factor

    model = autoada.AdaModel(Named())
    announced = IntentLog(model)
    with caplog.at_level(logging.WARNING, "autoada"):
        loop(model, autoada.AdaDataLoader(given, 2))
    assert announced.calls == []
    (told,) = caplog.messages
    assert "give AdaDataLoader a `prepare=` function" in told
    assert "test_arguments.py:" in told
    caplog.clear()
    loop(model, autoada.AdaDataLoader(given, 2, prepare=prepare))
    wanted = [rows_of(model, "users.weight", batch[0]) for batch in batches(8)]
    assert [keys for _, keys, _ in announced.calls] == wanted
    assert caplog.messages == []
    model.close()


@pytest.mark.parametrize("read", ["index", "embedding", "select"])
def test_a_parameter_that_is_read_by_rows_is_told_to_be_a_table(
    read: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Parameter(torch.zeros(2000, 2))
            self.positions = nn.Parameter(torch.zeros(20, 2))

        def forward(self, ids: Tensor) -> Any:
            if read == "index":
                x = self.items[ids]
            elif read == "embedding":
                x = nn.functional.embedding(ids, self.items)
            else:
                x = torch.index_select(self.items, 0, ids)
            return (x + self.positions[ids % 20]).sum()

    given = [batch[0] for batch in batches(6)]
    model = autoada.AdaModel(Bare())
    for ids in autoada.AdaDataLoader(given, 2):
        model(ids).backward()
    (told,) = caplog.messages
    assert told.startswith("all of 'items' is sent in every step")
    assert "test_arguments.py:" in told
    assert told.endswith("give AdaModel `tables=['items']`")
    model.close()
    caplog.clear()
    model = autoada.AdaModel(Bare(), tables=["items"])
    announced = IntentLog(model)
    for ids in autoada.AdaDataLoader(given, 2):
        model(ids).backward()
    assert announced.last == {clock: rows_of(model, "items", ids) for clock, ids in enumerate(given)}
    assert caplog.messages == []
    model.close()
