"""Local access to rows of 128 floats, and updates of rows in place, against torch on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import adaps

if TYPE_CHECKING:
    from tests.perf.conftest import Ratio
    from tests.perf.goals import Goal

ROWS = 1_000_000
LENGTH = 128
KEYS_A_CALL = 100_000
UPDATED_ROWS, UPDATED_LENGTH = 200_000, 32


class Store(NamedTuple):
    """The same rows in the parameter server and in a tensor."""

    worker: adaps.Worker
    table: Tensor


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    table = torch.randint(-256, 257, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1)) / 256.0
    sgd = adaps.Table("t", rows=ROWS, length=LENGTH, optimizer=adaps.SGD(lr=0.1), init=adaps.Constant(0.0))
    with adaps.Node([sgd]) as node:
        worker = node.worker(0)
        worker.set(torch.arange(ROWS), table)
        yield Store(worker, table)


def batches(size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randint(ROWS, (size,), generator=generator) for _ in range(KEYS_A_CALL // size)]


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
def test_pull_of_long_rows(store: Store, ratio: Ratio, goal: Goal, size: int) -> None:
    ids = batches(size)
    ours, theirs = torch.empty(size, LENGTH), torch.empty(size, LENGTH)

    def pull() -> None:
        for keys in ids:
            store.worker.pull(keys, ours)

    def index_select() -> None:
        for keys in ids:
            torch.index_select(store.table, 0, keys, out=theirs)

    speed = ratio(pull, index_select)
    assert torch.equal(ours, theirs)
    goal(f"pull of {size:,} of 128 floats", speed, at_least=1.5, unit="× torch.index_select")
    assert speed >= 0.7


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
def test_push_of_long_rows(store: Store, ratio: Ratio, goal: Goal, size: int) -> None:
    ids = batches(size)
    deltas = torch.randint(-256, 257, (size, LENGTH), generator=torch.Generator().manual_seed(2)) / 256.0

    def push() -> None:
        for keys in ids:
            store.worker.push(keys, deltas)

    def index_add() -> None:
        for keys in ids:
            store.table.index_add_(0, keys, deltas)

    speed = ratio(push, index_add)
    rows = torch.empty_like(deltas)
    store.worker.pull(ids[0], rows)
    assert torch.equal(rows, store.table[ids[0]])
    goal(f"push of {size:,} of 128 floats", speed, at_least=2, unit="× index_add_")
    assert speed >= 1.2


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
def test_push_gradients_with_adagrad(ratio: Ratio, goal: Goal, size: int) -> None:
    """Distinct rows, as after a backward that has summed duplicates; `torch` need not coalesce them."""
    generator = torch.Generator().manual_seed(3)
    steps = [
        torch.randperm(UPDATED_ROWS, generator=generator)[:size].sort().values
        for _ in range(KEYS_A_CALL // size)
    ]
    gradients = torch.randn(size, UPDATED_LENGTH, generator=generator)
    weight = nn.Parameter(torch.zeros(UPDATED_ROWS, UPDATED_LENGTH))
    optimizer = torch.optim.Adagrad([weight], lr=0.01)
    adagrad = adaps.Adagrad(lr=0.01)
    given = adaps.Table(
        "t", rows=UPDATED_ROWS, length=UPDATED_LENGTH, optimizer=adagrad, init=adaps.Constant(0.0)
    )
    with adaps.Node([given]) as node:
        worker = node.worker(0)

        def ours() -> None:
            for rows in steps:
                worker.push_gradients(rows, gradients)

        def theirs() -> None:
            for rows in steps:
                weight.grad = torch.sparse_coo_tensor(
                    rows[None], gradients, weight.shape, is_coalesced=True, check_invariants=False
                )
                optimizer.step()

        speed = ratio(ours, theirs)
        reached = torch.empty(UPDATED_ROWS, UPDATED_LENGTH)
        worker.pull(torch.arange(UPDATED_ROWS), reached)
    torch.testing.assert_close(reached, weight.detach(), rtol=1e-4, atol=1e-5)
    goal(f"push_gradients of {size:,}, Adagrad", speed, at_least=4, unit="× torch.optim.Adagrad")
    assert speed >= 1.5
