"""Each worker's part of the data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import adaps
import autoada
from autoada.loader.data_sharding import shard_loader
from tests.unit.autoada.small_net import Net

ITEMS = 20
DATA = TensorDataset(torch.arange(ITEMS))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(ITEMS))


class Unsized(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


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


def random_batches(batch_size: int, drop_last: bool) -> BatchSampler:
    return BatchSampler(
        RandomSampler(DATA, generator=torch.Generator().manual_seed(4)), batch_size, drop_last
    )


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        lambda drop_last: {
            "batch_size": 4,
            "shuffle": True,
            "drop_last": drop_last,
            "generator": torch.Generator().manual_seed(4),
        },
        lambda drop_last: {
            "batch_size": 4,
            "sampler": RandomSampler(DATA, generator=torch.Generator().manual_seed(4)),
            "drop_last": drop_last,
        },
        lambda drop_last: {"batch_sampler": random_batches(4, drop_last)},
        lambda drop_last: {"sampler": random_batches(4, drop_last), "batch_size": None},
    ],
    ids=["shuffle", "sampler", "batch sampler", "batches as sampler"],
)
def test_batch_size_order_and_drop_last_are_those_of_the_loader(options: Any, drop_last: bool) -> None:
    """Two workers get the batches that a `DistributedSampler` gives with the same seed."""
    node = autoada.create_node(Net(ITEMS), workers=2)

    def work(worker: int) -> list[list[list[int]]]:
        model = autoada.AdaModel(Net(ITEMS), node=node, worker=worker)
        loader = autoada.AdaDataLoader(DataLoader(DATA, **options(drop_last)), model=model, shard=True)
        passes: list[list[list[int]]] = []
        for _ in range(2):
            passes.append([])
            for (ids,) in loader:
                model(ids).sum().backward()
                passes[-1].append(ids.tolist())
        assert len(loader) == len(passes[-1])
        return passes

    with node, ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, range(2)))
    for worker, passes in enumerate(found):
        sampler: Any = DistributedSampler(DATA, 2, worker, shuffle=True, seed=5)
        for number, batches in enumerate(passes):
            sampler.set_epoch(number)
            assert batches == list(BatchSampler(sampler, 4, drop_last))


def test_other_options_of_the_loader_stay() -> None:
    given: Any = DataLoader(
        DATA,
        batch_sampler=random_batches(4, True),
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=3,
        in_order=False,
        timeout=60,
        multiprocessing_context="spawn",
        generator=torch.Generator(),
        collate_fn=torch.stack,
        worker_init_fn=print,
        pin_memory=True,
    )
    with autoada.create_node(Net(ITEMS), workers=2) as node:
        access: Any = SimpleNamespace(num_workers=2, worker_index=0, local_index=0, node=node)
        shared = shard_loader(given, access)
    before, after = vars(given), vars(shared)
    assert {name for name in before if after[name] is not before[name]} == {"sampler", "batch_sampler"}


def test_worker_that_shards_alone_raises_after_the_stall_timeout() -> None:
    with adaps.Node([adaps.Table("rows", ITEMS, 1)], workers=2, stall_timeout=0.2) as node:
        access: Any = SimpleNamespace(num_workers=2, worker_index=1, local_index=1, node=node)
        with pytest.raises(adaps.AdapsError, match=r"worker 0 .* within 0\.2 s"):
            shard_loader(DataLoader(DATA), access)


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
            DataLoader(DATA, batch_sampler=BatchSampler(DistributedSampler(DATA, 2, 0), 2, False)),
            "has a DistributedSampler, which shares its data: leave out shard=True",
        ),
        (
            DataLoader(DATA, sampler=BatchSampler(SubsetRandomSampler([1, 2]), 2, False), batch_size=None),
            "cannot share what SubsetRandomSampler gives, a sampler: give each node",
        ),
        (
            DataLoader(DATA, sampler=SequentialSampler(range(10))),
            "cannot share what SequentialSampler gives, 10 of 20 items: give each node",
        ),
        (DataLoader(DATA, sampler=[3, 1]), "cannot share what list gives, a sampler: give each node"),
        (DataLoader(Unsized(), sampler=[3, 1]), "cannot share Unsized, which has no length: give each node"),
        (
            DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)),
            "has a DistributedSampler, which shares its data: leave out shard=True",
        ),
    ],
)
def test_what_cannot_be_shared_says_what_to_do(loader: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        autoada.AdaDataLoader(loader, shard=True)
