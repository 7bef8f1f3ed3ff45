"""Local access to the store against torch's own gather, scatter-add and optimizer on the same rows."""

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
UPDATED_ROWS, UPDATED_LENGTH = 200_000, 32

# Goals of pulls by the length of a row; each round of a benchmark moves about the same number of bytes.
PULL_GOALS = {32: 1.15, 128: 1.1}
PUSH_GOAL = 1.5
KEYS_A_ROUND = {32: 300_000, 128: 100_000}

sizes = pytest.mark.parametrize("size", [1_000, 10_000, 100_000])


class Store(NamedTuple):
    """The same rows in the parameter server and in a tensor."""

    worker: adaps.Worker
    table: Tensor

    @property
    def length(self) -> int:
        return self.table.shape[1]

    def batches(self, size: int) -> list[Tensor]:
        """Random batches of row ids, which together exceed a cache, so that a call's rows are not in it."""
        generator = torch.Generator().manual_seed(size)
        count = KEYS_A_ROUND[self.length] // size
        return [torch.randint(ROWS, (size,), generator=generator) for _ in range(count)]


@pytest.fixture(scope="module", params=sorted(PULL_GOALS), ids="{} floats".format)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    length = request.param
    table = binary_fractions(ROWS, length, seed=1)
    sgd = adaps.Table("t", rows=ROWS, length=length, optimizer=adaps.SGD(lr=0.1), init=adaps.Constant(0.0))
    with adaps.Node([sgd]) as node:
        worker = node.worker(0)
        worker.set(torch.arange(ROWS), table)
        yield Store(worker, table)


def binary_fractions(rows: int, length: int, seed: int) -> Tensor:
    """Values with exact sums, so that the order of additions does not matter."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-256, 257, (rows, length), generator=generator) / 256.0


@sizes
def test_pull(store: Store, ratio: Ratio, goal: Goal, size: int) -> None:
    ids = store.batches(size)
    ours, theirs = torch.empty(size, store.length), torch.empty(size, store.length)

    def pull() -> None:
        for keys in ids:
            store.worker.pull(keys, ours)

    def index_select() -> None:
        for keys in ids:
            torch.index_select(store.table, 0, keys, out=theirs)

    speed = ratio(pull, index_select)
    assert torch.equal(ours, theirs)
    what = f"pull of {size:,} of {store.length} floats"
    goal(what, speed, at_least=PULL_GOALS[store.length], unit="× torch.index_select")


@sizes
def test_push(store: Store, ratio: Ratio, goal: Goal, size: int) -> None:
    ids = store.batches(size)
    deltas = binary_fractions(size, store.length, seed=2)

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
    goal(f"push of {size:,} of {store.length} floats", speed, at_least=PUSH_GOAL, unit="× index_add_")


@sizes
def test_push_gradients_with_adagrad(ratio: Ratio, goal: Goal, size: int) -> None:
    """Distinct rows, as after a backward that has summed duplicates; `torch` need not coalesce them."""
    generator = torch.Generator().manual_seed(3)
    steps = [
        torch.randperm(UPDATED_ROWS, generator=generator)[:size].sort().values
        for _ in range(KEYS_A_ROUND[128] // size)
    ]
    gradients = torch.randn(size, UPDATED_LENGTH, generator=generator)
    weight = nn.Parameter(torch.zeros(UPDATED_ROWS, UPDATED_LENGTH))
    optimizer = torch.optim.Adagrad([weight], lr=0.01)
    # explicitly off, which is the default, to avoid a warning
    torch.sparse.check_sparse_tensor_invariants.disable()
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
