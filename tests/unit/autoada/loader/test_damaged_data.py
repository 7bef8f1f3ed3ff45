"""Data sets that fail, in this process and in those of a torch DataLoader."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import autoada
from tests.unit.autoada.small_net import IntentLog, Net
from tests.warm import children

ROWS = 50
DAMAGED = 37


class DamagedItem(Exception):
    pass


class Items(Dataset[int]):
    """Row ids; something happens to item `DAMAGED`."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault

    def __len__(self) -> int:
        return 60

    def __getitem__(self, item: int) -> int:
        if item == DAMAGED and self._fault == "raise":
            raise DamagedItem("item 37 is damaged")
        if item == DAMAGED and self._fault == "exit":
            os._exit(3)
        if item == DAMAGED and self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return item % ROWS


_EARLIER: list[psutil.Process] = []


@pytest.fixture(autouse=True)
def processes_of_earlier_tests() -> None:
    """Remember processes that live as long as this one, such as the resource tracker of multiprocessing."""
    _EARLIER[:] = children()


@pytest.fixture
def model() -> Iterator[autoada.AdaModel]:
    model = autoada.AdaModel(Net(ROWS))
    yield model
    model.close()


def train(model: nn.Module, batches: Iterable[Any], most: int = 100) -> int:
    steps = 0
    for batch in batches:
        model(torch.as_tensor(batch)).sum().backward()
        steps += 1
        if steps == most:
            break
    return steps


def by_hand(batch: Any) -> dict[str, Tensor]:
    return {"rows": torch.as_tensor(batch)}


def prepared(batch: Any) -> Any:
    return (torch.as_tensor(batch),), {}


def generated() -> Iterator[Tensor]:
    yield from torch.arange(36).view(9, 4)
    raise DamagedItem("item 37 is damaged")


def assert_nothing_is_left(model: autoada.AdaModel) -> None:
    """No intent for a clock to come, no process of a loader, and the training can go on."""
    gc.collect()  # torch's exception refers to itself, and to its loader
    assert children() == _EARLIER
    before = model.worker.current_clock
    assert train(model, autoada.AdaDataLoader(DataLoader(Items(), 4), 2)) == 15
    assert model.worker.current_clock == before + 15
    assert model.node.stats()["intents_late"] == 0


@pytest.mark.parametrize("keys", [None, by_hand], ids=["predicted", "by hand"])
@pytest.mark.parametrize("processes", [None, 0, 1, 2])
def test_what_the_data_set_raises_reaches_the_loop(
    model: autoada.AdaModel, keys: Any, processes: int | None
) -> None:
    plain = generated() if processes is None else DataLoader(Items("raise"), 4, num_workers=processes)
    log = IntentLog(model)
    with pytest.raises(DamagedItem, match="item 37 is damaged") as raised:
        train(model, autoada.AdaDataLoader(plain, 2, keys=keys))
    if processes:
        assert "Original Traceback (most recent call last):" in str(raised.value)
        assert "in __getitem__" in str(raised.value)
    del raised
    assert len(log.starts) == 9
    assert model.worker.current_clock == 1 + max(log.starts)
    assert_nothing_is_left(model)


@pytest.mark.parametrize("given", [{"keys": by_hand}, {"prepare": prepared}], ids=["by hand", "predicted"])
@pytest.mark.parametrize(("fault", "processes"), [("exit", 1), ("kill", 2)])
def test_the_death_of_a_loader_s_process_reaches_the_loop(
    model: autoada.AdaModel, given: dict[str, Any], fault: str, processes: int
) -> None:
    # lists: tensors would be fetched from the dying process, and the error of that would come first
    plain = DataLoader(Items(fault), 4, num_workers=processes, collate_fn=list)
    with pytest.raises(
        RuntimeError, match=r"DataLoader worker \(pid.*(exited unexpectedly|by signal: Killed)"
    ):
        train(model, autoada.AdaDataLoader(plain, 2, **given))
    assert_nothing_is_left(model)


def test_a_break_ends_the_loader_s_processes(model: autoada.AdaModel) -> None:
    loader = autoada.AdaDataLoader(DataLoader(Items(), 4, num_workers=2), 2)
    assert train(model, loader, most=3) == 3
    assert children() == _EARLIER
    assert_nothing_is_left(model)
