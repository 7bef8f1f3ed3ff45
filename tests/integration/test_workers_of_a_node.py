"""Workers of one node in threads: parameters that each worker steps itself, and shares of data."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import autoada

SHARES = (1.0, 10.0)
"""Gradient of each worker."""


class Scores(nn.Module):
    """A weight whose gradient is the input, and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.emb = nn.Embedding(8, 2)

    def forward(self, x: float) -> Any:
        return self.weight.sum() * x + self.emb(torch.arange(2)).sum()


def upwards(model: Scores) -> list[torch.optim.Optimizer]:
    """The server has no rule for `maximize`, so each worker steps the weight with the sum of gradients."""
    return [
        torch.optim.SGD([model.emb.weight], lr=0.1),
        torch.optim.SGD([model.weight], lr=1.0, maximize=True),
    ]


def step(model: Any, optimizers: list[torch.optim.Optimizer], worker: int) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    model(SHARES[worker]).backward()
    for optimizer in optimizers:
        optimizer.step()


def on_both(run: Any) -> list[Any]:
    """Results of ``run(node, worker)`` in two threads."""
    model = Scores()
    with autoada.create_node(model, upwards(model), workers=2) as node, ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(run, node, worker) for worker in range(2)]]


def test_sums_of_gradients_are_right_after_the_first_worker_has_closed() -> None:
    def run(node: Any, worker: int) -> list[float]:
        plain = Scores()
        optimizers = upwards(plain)
        model = autoada.AdaModel(plain, optimizers, node=node, worker=worker)
        for _ in range(3 + 7 * worker):
            step(model, optimizers, worker)
        model.close()
        return plain.weight.tolist()

    assert on_both(run) == [[33.0] * 3, [33.0 + 70.0] * 3]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_sums_of_gradients_before_a_checkpoint_do_not_count_after_it(steps: int, tmp_path: Path) -> None:
    def run(node: Any, worker: int, restores: bool) -> list[float]:
        plain = Scores()
        optimizers = upwards(plain)
        model = autoada.AdaModel(plain, optimizers, node=node, worker=worker)
        if restores:
            model.restore(tmp_path)
            for _ in range(3):
                step(model, optimizers, worker)
        else:
            for _ in range(steps):
                step(model, optimizers, worker)
            model.checkpoint(tmp_path)
        model.close()
        return plain.weight.tolist()

    assert on_both(lambda node, worker: run(node, worker, restores=False)) == [[11.0 * steps] * 3] * 2
    assert on_both(lambda node, worker: run(node, worker, restores=True)) == [[11.0 * (steps + 3)] * 3] * 2


def test_another_state_than_that_of_the_primary_worker_is_refused() -> None:
    def adam(model: Scores) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD([model.emb.weight], lr=0.1), torch.optim.Adam([model.weight], amsgrad=True)]

    def run(node: Any, worker: int) -> str:
        plain = Scores()
        optimizers = adam(plain)
        if worker == 0:
            step(plain, optimizers, 0)
        try:
            autoada.AdaModel(plain, optimizers, node=node, worker=worker)
        except ValueError as error:
            node.worker(worker).finalize()  # as at the end of a program: the other worker goes on
            return str(error)
        return ""

    model = Scores()
    with autoada.create_node(model, adam(model), workers=2) as node, ThreadPoolExecutor(2) as pool:
        results = [pool.submit(run, node, worker) for worker in range(2)]
        assert "Adam steps some parameters on each worker" in results[1].result()


def test_sparse_adam_steps_parameters_that_share_memory_on_each_worker() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Embedding(6, 2, sparse=True), nn.Embedding(6, 2, sparse=True)
            self.b.weight.data = self.a.weight.data

        def forward(self, ids: Tensor) -> Any:
            return (self.a(ids) * self.b(ids + 1)).sum()

    def made() -> tuple[Tied, torch.optim.Optimizer]:
        model = Tied()
        return model, torch.optim.SparseAdam(model.parameters(), lr=0.1)

    def run(node: Any, worker: int) -> Tensor:
        plain, optimizer = made()
        model = autoada.AdaModel(plain, optimizer, node=node, worker=worker)
        before = plain.a.weight.detach().clone()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([worker, worker])).backward()
            optimizer.step()
        model.close()
        assert (plain.a.weight != before).any(1).tolist() == [True, True, True, False, False, False]
        return plain.a.weight.detach()

    with autoada.create_node(*made(), workers=2) as node, ThreadPoolExecutor(2) as pool:
        one, two = [each.result() for each in [pool.submit(run, node, worker) for worker in range(2)]]
    assert torch.equal(one, two)


def test_a_thread_gets_the_share_of_the_model_that_it_made() -> None:
    made = threading.Barrier(2)

    def run(node: Any, worker: int) -> list[int]:
        plain = Scores()
        model = autoada.AdaModel(plain, upwards(plain), node=node, worker=worker)
        loader = autoada.AdaDataLoader(DataLoader(range(8), batch_size=2), shard=True)  # type: ignore[arg-type]
        made.wait()  # Both models exist before a loader looks for its model.
        result = [int(number) for batch in loader for number in batch]
        model.close()
        return result

    one, two = on_both(run)
    assert sorted(one + two) == list(range(8))
