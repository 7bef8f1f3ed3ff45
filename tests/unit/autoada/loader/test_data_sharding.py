"""Each worker's part of the data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import autoada
from tests.unit.autoada.small_net import Net

ITEMS = 20
DATA = TensorDataset(torch.arange(ITEMS))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(ITEMS))


class OwnBatches(BatchSampler):
    pass


def passes(workers: int, make: Callable[[], Any], **options: Any) -> list[list[list[int]]]:
    """The items that each worker thread gets in each pass."""
    node = autoada.create_node(Net(ITEMS), workers=workers)

    def work(worker: int) -> list[list[int]]:
        model = autoada.AdaModel(Net(ITEMS), node=node, worker=worker)
        loader = autoada.AdaDataLoader(make(), 1, model=model, **options)
        items: list[list[int]] = []
        for _ in range(2):
            items.append([])
            for (ids,) in loader:
                model(ids).sum().backward()
                items[-1] += ids.tolist()
            assert len(loader) == len(range(0, len(items[-1]), 5))
        return items

    with node, ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


def test_workers_share_what_is_in_order() -> None:
    for first, second in zip(*passes(2, lambda: DataLoader(DATA, batch_size=5), shard=True), strict=True):
        assert (first, second) == (list(range(0, ITEMS, 2)), list(range(1, ITEMS, 2)))


@pytest.mark.parametrize("generator", [False, True])
def test_shuffled_data_are_shared_anew_in_each_pass_and_the_same_in_each_run(generator: bool) -> None:
    def make() -> Any:
        own = torch.Generator().manual_seed(4) if generator else None
        return DataLoader(DATA, batch_size=5, shuffle=True, generator=own)

    torch.manual_seed(1)
    first, second = passes(2, make, shard=True)
    for number in range(2):
        assert sorted(first[number] + second[number]) == list(range(ITEMS))
    assert first[0] != first[1]
    assert first[0] != sorted(first[0])
    torch.manual_seed(1)
    assert passes(2, make, shard=True) == [first, second]
    torch.manual_seed(2)
    assert (passes(2, make, shard=True) == [first, second]) == generator


def test_one_worker_has_the_loader_as_it_is() -> None:
    (items,) = passes(1, lambda: DataLoader(DATA, batch_size=5), shard=True)
    assert items == [list(range(ITEMS))] * 2


@pytest.mark.parametrize("shard", [False, True])
def test_equal_first_batches_are_told_with_the_remedy(shard: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "autoada"):
        passes(2, lambda: DataLoader(DATA, batch_size=5), shard=shard)
    told = [message for message in caplog.messages if "equal batches" in message]
    assert set(told) == (
        set()
        if shard
        else {
            "workers 0 and 1 begin with equal batches, so both train on the same data: "
            "AdaDataLoader(loader, shard=True) gives each of them its part"
        }
    )


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ([1, 2], "takes a torch.utils.data.DataLoader, not a list: give each node its part of the data"),
        (DataLoader(Stream()), "cannot share Stream, an iterable data set: give each node"),
        (
            DataLoader(DATA, batch_sampler=OwnBatches(SequentialSampler(DATA), 2, False)),
            "cannot share what OwnBatches gives, a batch sampler: give each node",
        ),
        (
            DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * ITEMS, ITEMS)),
            "cannot share what WeightedRandomSampler gives, a sampler: give each node",
        ),
        (
            DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)),
            "has a DistributedSampler, which shares its data: leave out shard=True",
        ),
    ],
)
def test_what_cannot_be_shared_says_what_to_do(loader: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        autoada.AdaDataLoader(loader, shard=True)
