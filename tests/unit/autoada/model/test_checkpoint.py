"""A wrapped model continues from a checkpoint as if nothing had happened."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import adaps
import autoada as aa

ROWS, FIELDS, BATCH = 50, 3, 8
BATCHES = 7


class Clicks(nn.Module):
    """A model with every kind of state: rows, dense parameters, buffers, random draws."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 4)
        self.norm = nn.BatchNorm1d(FIELDS * 4)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(FIELDS * 4, 1)
        self.register_buffer("calls", torch.zeros(2, 3, dtype=torch.bfloat16))

    def forward(self, ids: Tensor) -> Any:
        self.calls += 1
        return self.out(self.drop(self.norm(self.rows(ids).flatten(1))))


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, ROWS, (BATCH * BATCHES, FIELDS), generator=generator)
    return DataLoader(TensorDataset(ids, (ids.sum(1, keepdim=True) % 2).float()), BATCH, shuffle=True)


Optimizer = Callable[[nn.Module], Any]
OPTIMIZERS: dict[str, Optimizer] = {
    "immediate Adagrad": lambda model: None,
    "SGD with momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


class Training:
    """A training that can be left and taken up between any two steps."""

    def __init__(self, optimizer: Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the legacy generator is kept, too
        plain = Clicks()
        self.optimizer = optimizer(plain)
        self.model = aa.AdaModel(plain, self.optimizer)
        self.loader = aa.AdaDataLoader(data(), lookahead=2, model=self.model)
        self.scheduler = None
        if self.optimizer is not None:
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=5, gamma=0.5)
        self.steps = self._steps()

    def _steps(self) -> Iterator[float]:
        while True:
            for ids, label in self.loader:
                loss = nn.functional.binary_cross_entropy_with_logits(self.model(ids), label)
                loss = loss * (1 + random.random() + np.random.rand())  # noqa: NPY002
                loss.backward()
                if self.scheduler is not None:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.scheduler.step()
                yield loss.item()

    def losses(self, count: int) -> list[float]:
        return list(islice(self.steps, count))

    def save(self, directory: Path) -> None:
        extra = {} if self.scheduler is None else {"scheduler": self.scheduler.state_dict()}
        self.model.checkpoint(directory, self.loader, extra)

    def restore(self, directory: Path) -> None:
        extra = self.model.restore(directory, self.loader)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(extra["scheduler"])

    def end(self) -> None:
        self.steps.close()  # type: ignore[attr-defined]
        self.model.close()


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize(
    "steps", [0, 3, BATCHES, 2 * BATCHES + 4], ids=["before", "amid", "at the end", "in the third"]
)
def test_losses_are_bitwise_those_of_an_uninterrupted_training(
    tmp_path: Path, optimizer: Optimizer, steps: int
) -> None:
    whole = Training(optimizer, seed=1)
    whole.losses(steps)
    whole.save(tmp_path)
    expected = whole.losses(12)
    state = whole.model.state_dict()
    whole.end()

    other = Training(optimizer, seed=8)
    other.restore(tmp_path)
    assert other.loader.epoch == max(0, steps - 1) // BATCHES
    assert other.model._staleness.steps == steps
    assert other.losses(12) == expected
    for name, value in other.model.state_dict().items():
        assert torch.equal(value, state[name]), name
    other.end()


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_exports_of_a_model_hold_the_tables_that_its_state_has(tmp_path: Path, optimizer: Optimizer) -> None:
    training = Training(optimizer, seed=1)
    for steps in (1, 2, 4):
        training.losses(steps)
        training.model.export(tmp_path).wait()
        exported = adaps.load_export(tmp_path)
        assert list(exported) == ["rows.weight"]
        # Read after the export: rows that were idle have made up for that already.
        assert torch.equal(
            torch.from_numpy(exported["rows.weight"]), training.model.state_dict()["rows.weight"]
        )
    with pytest.raises(KeyError, match=r"no table 'row.weight' \(did you mean 'rows.weight'\?\)"):
        training.model.export(tmp_path, tables=["row.weight"])
    training.end()


def test_a_model_can_go_back_to_its_own_checkpoint(tmp_path: Path) -> None:
    training = Training(OPTIMIZERS["Adam"], seed=1)
    training.losses(3)
    training.save(tmp_path)
    expected = training.losses(9)
    training.restore(tmp_path)
    training.steps.close()  # type: ignore[attr-defined] # the pass that is given up does not count any more
    training.steps = training._steps()
    assert training.losses(9) == expected
    training.end()


def test_another_number_of_workers_skips_the_same_share_of_the_pass(tmp_path: Path) -> None:
    training = Training(OPTIMIZERS["Adam"], seed=1)
    training.losses(4)
    training.save(tmp_path)
    training.end()
    plain = Clicks()
    node = aa.create_node(plain, OPTIMIZERS["Adam"](plain), workers=1)
    with node:
        model = aa.AdaModel(plain, OPTIMIZERS["Adam"](plain), node=node)
        loader = aa.AdaDataLoader([(torch.zeros(2, FIELDS, dtype=torch.int64), i) for i in range(7)])
        model.restore(tmp_path, loader)
        loader.position.resume({"epoch": 3, "batches": 4, "fetched": 6}, None, share=0.5)
        assert [number for _, number in loader] == [2, 3, 4, 5, 6]
        assert loader.epoch == 4
        assert [number for _, number in loader] == list(range(7))
        model.close()


def test_a_shorter_loader_than_before_is_at_its_end(tmp_path: Path) -> None:
    with aa.create_node(Clicks()) as node:
        model = aa.AdaModel(Clicks(), node=node)
        loader = aa.AdaDataLoader([(torch.zeros(2, FIELDS, dtype=torch.int64), i) for i in range(3)])
        loader.position.resume({"epoch": 0, "batches": 5, "fetched": 6}, None)
        assert list(loader) == []
        assert (loader.epoch, len(list(loader))) == (1, 3)
        model.close()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    training = Training(OPTIMIZERS["Adam"], seed=1)
    training.save(tmp_path)
    training.end()
    other = Training(OPTIMIZERS["SGD with momentum"], seed=1)
    with pytest.raises(adaps.CheckpointError, match=r"'rows.weight' has optimizer Adam\(.*but SGD\("):
        other.restore(tmp_path)
    other.end()


class Pair(nn.Module):
    """Two layers of the same shape, which are defined in a given order."""

    scale: Tensor

    def __init__(
        self, names: str = "ab", scale: Tensor | None = None, shape: tuple[int, int] = (4, 4)
    ) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(*shape))
        if scale is not None:
            self.register_buffer("scale", scale)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def nadam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.NAdam(model.parameters())


@pytest.mark.parametrize(
    ("optimizer", "saved", "present", "message"),
    [
        (
            sgd,
            Pair("ab"),
            Pair("ba"),
            r"has the dense parameter 'a.weight' of shape \(4, 4\) where the model has .* 'b.weight'",
        ),
        (
            sgd,
            Pair(shape=(4, 4)),
            Pair(shape=(2, 8)),
            r"'a.weight' of shape \(4, 4\) where .* \(8, 2\)",
        ),
        (sgd, Pair("ab"), Pair("ac"), r"has .* 'b.weight' .* where the model has .* 'c.weight'"),
        (nadam, Pair("ab"), Pair("ac"), r"no values of shape \(4, 4\) for the parameter 'c.weight'"),
        (nadam, Pair(shape=(4, 4)), Pair(shape=(2, 8)), r"no values of shape \(8, 2\) for .* 'a.weight'"),
        (sgd, Pair(scale=torch.ones(1)), Pair(scale=torch.ones(3)), r"'scale' is float32 of shape \(3,\)"),
        (sgd, Pair(scale=torch.ones(1)), Pair(scale=torch.ones(1).int()), "'scale' is int32 of shape"),
        (
            sgd,
            Pair(),
            Pair(scale=torch.ones(3)),
            r"'scale' is .* in the model and not there in the checkpoint",
        ),
    ],
)
def test_a_checkpoint_of_other_parameters_or_buffers_changes_nothing(
    tmp_path: Path, optimizer: Optimizer, saved: Pair, present: Pair, message: str
) -> None:
    saved, present = copy.deepcopy((saved, present))
    model = aa.AdaModel(saved, optimizer(saved))
    model.checkpoint(tmp_path)
    model.close()
    model = aa.AdaModel(present, optimizer(present))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(adaps.CheckpointError, match=message):
        model.restore(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    model.close()


def test_a_buffer_that_appeared_after_the_checkpoint_stays_if_no_state_dictionary_has_it(
    tmp_path: Path,
) -> None:
    plain = Pair()
    model = aa.AdaModel(plain, sgd(plain))
    model.checkpoint(tmp_path)
    plain.register_buffer("scale", torch.ones(3), persistent=False)
    model.restore(tmp_path)
    assert torch.equal(plain.scale, torch.ones(3))
    model.close()
