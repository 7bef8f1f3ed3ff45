"""Shares and order of the training rows of the use case ctr."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from adabench.usecases.common.batches import (
    Draw,
    OrderedBatches,
    ShuffledBatches,
    batch_loader,
    strided_share,
)
from adabench.usecases.ctr import CtrParams, CtrUseCase
from adabench.usecases.ctr.loader import Batch, Split
from adabench.usecases.interface import DataError


def numbered(count: int) -> Split:
    numbers = torch.arange(count)
    return Split(Batch(numbers.float().repeat(13, 1).T, numbers.repeat(26, 1).T, numbers.float()))


def shuffled(count: int, batch: int, seed: int, share: int, shares: int) -> ShuffledBatches:
    return ShuffledBatches(strided_share(count, share, [batch] * shares), batch, seed, share)


def epoch(batches: ShuffledBatches) -> list[int]:
    return cast("list[int]", torch.cat([draw.rows for draw in batches]).tolist())


@pytest.mark.parametrize(("count", "shares"), [(1000, 1), (1000, 2), (1003, 4)])
def test_shares_are_disjoint_and_equally_long(count: int, shares: int) -> None:
    samplers = [shuffled(count, 10, 1, share, shares) for share in range(shares)]
    assert {len(sampler) for sampler in samplers} == {count // shares // 10}
    for _ in range(3):
        rows = [epoch(sampler) for sampler in samplers]
        assert len({len(share) for share in rows}) == 1
        together = [row for share in rows for row in share]
        assert len(set(together)) == len(together)
        assert max(together) < count


def test_a_row_stays_in_its_share() -> None:
    one, two = (shuffled(100, 7, 1, share, 2) for share in (0, 1))
    seen = [{row for _ in range(30) for row in epoch(sampler)} for sampler in (one, two)]
    assert seen == [set(range(0, 100, 2)), set(range(1, 100, 2))]


def test_order_depends_on_seed_and_epoch_only() -> None:
    one, two, other = (shuffled(256, 16, seed, 0, 1) for seed in (1, 1, 2))
    first = epoch(one)
    torch.manual_seed(9)  # the global generator has no influence
    assert epoch(two) == first
    assert epoch(other) != first
    second = epoch(one)
    assert second != first
    assert sorted(second) == sorted(first)
    assert epoch(two) == second


def test_training_batches_are_full_and_evaluation_is_complete() -> None:
    split = numbered(70)
    train = list(batch_loader(split, shuffled(70, 32, 1, 0, 1)))
    assert [len(batch.label) for batch in train] == [32, 32]
    test = list(batch_loader(split, OrderedBatches(np.arange(70), 32)))
    assert [len(batch.label) for batch in test] == [32, 32, 6]
    assert torch.cat([batch.label for batch in test]).tolist() == list(range(70))


def test_a_batch_keeps_the_columns_of_its_rows_together() -> None:
    for batch in batch_loader(numbered(64), shuffled(64, 16, 3, 0, 1)):
        assert isinstance(batch, Batch)
        assert [column.dtype for column in batch] == [torch.float32, torch.int64, torch.float32]
        assert torch.equal(batch.dense, batch.label[:, None].expand(16, 13))
        assert torch.equal(batch.ids, batch.label.long()[:, None].expand(16, 26))


def test_a_batch_is_fetched_by_one_indexing() -> None:
    class Counting(Split):
        fetches = 0

        def __getitem__(self, draw: Draw) -> Batch:
            self.fetches += 1
            return super().__getitem__(draw)

    split = Counting(numbered(64).samples)
    loader = batch_loader(split, OrderedBatches(np.arange(64), 16))
    assert len(loader) == len(list(loader)) == split.fetches == 4


def test_iterating_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    list(batch_loader(numbered(64), shuffled(64, 16, 3, 0, 1)))
    assert torch.equal(torch.get_rng_state(), state)


def test_loaders_of_the_use_case() -> None:
    usecase = CtrUseCase(CtrParams(rows=1400, batch=64), None, 1)
    loaders = [usecase.loaders(rank, 2) for rank in (0, 1)]
    for each in loaders:
        assert isinstance(each.train, DataLoader)
        assert len(each.train) == 1000 // 2 // 64
        assert sum(len(batch.label) for batch in each.valid) == 200
        assert sum(len(batch.label) for batch in each.test) == 200


def test_too_few_rows_for_the_workers_are_named() -> None:
    usecase = CtrUseCase(CtrParams(rows=700), None, 1)
    message = "the training split has 500 rows: 4 workers with batches of 128 need at least 512"
    with pytest.raises(DataError, match=message):
        usecase.loaders(0, 4)
    with pytest.raises(ValueError, match=r"worker 2 of 2: .* from 0 to 1"):
        usecase.loaders(2, 2)
