"""Local access to the store against torch's own gather and scatter-add on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch import Tensor

import adaps

if TYPE_CHECKING:
    from tests.perf.conftest import Ratio
    from tests.perf.goals import Goal

ROWS = 1_000_000
LENGTH = 32
KEYS_A_CALL = 300_000


class Store(NamedTuple):
    """The same rows in the parameter server and in a tensor."""

    worker: adaps.Worker
    table: Tensor


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    table = binary_fractions(ROWS, seed=1)
    sgd = adaps.Table("t", rows=ROWS, length=LENGTH, optimizer=adaps.SGD(lr=0.1), init=adaps.Constant(0.0))
    with adaps.Node([sgd]) as node:
        worker = node.worker(0)
        worker.set(torch.arange(ROWS), table)
        yield Store(worker, table)


def binary_fractions(rows: int, seed: int) -> Tensor:
    """Values whose sums are exact, so that the order of additions does not matter."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-256, 257, (rows, LENGTH), generator=generator) / 256.0


def batches(size: int) -> list[Tensor]:
    """Random row ids; all batches together are so many that the rows of one call do not stay in a cache."""
    generator = torch.Generator().manual_seed(size)
    return [torch.randint(ROWS, (size,), generator=generator) for _ in range(KEYS_A_CALL // size)]


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
def test_pull(store: Store, ratio: Ratio, goal: Goal, size: int) -> None:
    ids = batches(size)
    ours, theirs = torch.empty(size, LENGTH), torch.empty(size, LENGTH)

    def pull() -> None:
        for keys in ids:
            store.worker.pull(keys, ours)

    def index_select() -> None:
        for keys in ids:
            torch.index_select(store.table, 0, keys, out=theirs)

    speed = ratio(pull, index_select)
    goal(f"pull of {size:,} of 32 floats", speed, at_least=1.1, unit="× torch.index_select")
    assert torch.equal(ours, theirs)
    assert speed >= 0.7


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
def test_push(store: Store, ratio: Ratio, goal: Goal, size: int) -> None:
    ids = batches(size)
    deltas = binary_fractions(size, seed=2)

    def push() -> None:
        for keys in ids:
            store.worker.push(keys, deltas)

    def index_add() -> None:
        for keys in ids:
            store.table.index_add_(0, keys, deltas)

    speed = ratio(push, index_add)
    goal(f"push of {size:,} of 32 floats", speed, at_least=2, unit="× index_add_")
    rows = torch.empty_like(deltas)
    store.worker.pull(ids[0], rows)
    assert torch.equal(rows, store.table[ids[0]])
    assert speed >= 1.5
