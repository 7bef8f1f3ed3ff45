"""A small model, its batches and a step, for the scripts of the ranks and their tests."""

from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adaps
import autoada

ROWS = 60
BATCH = 16
RATE = 0.1
_one_at_a_time = Lock()
FIELDS = 4


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Embedding(ROWS, 1)
        self.deep = nn.Embedding(ROWS, 4)
        self.mlp = nn.Sequential(nn.Linear(FIELDS * 4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Any:
        return self.wide(ids).sum(1) + self.mlp(self.deep(ids).flatten(1))


def clicks(seed: int = 0) -> Clicks:
    with _one_at_a_time:  # threads share the global random generator
        torch.manual_seed(seed)
        return Clicks()


def batches(steps: int, shares: int, share: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Batches of all shares together, or of one of them."""
    generator = torch.Generator().manual_seed(11)
    result = []
    for _ in range(steps):
        ids = torch.randint(0, ROWS, (shares * BATCH, FIELDS), generator=generator)
        label = (ids.sum(1, keepdim=True) % 3 == 0).float()
        part = slice(None) if share is None else slice(share * BATCH, (share + 1) * BATCH)
        result.append((ids[part], label[part]))
    return result


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    ids, label = batch
    return F.binary_cross_entropy_with_logits(model(ids), label)


def node_for(shares: int, workers: int) -> adaps.Node:
    model = clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE / shares)
    return autoada.create_node(model, optimizer, workers=workers)


def train_share(node: adaps.Node, worker: int, steps: int) -> dict[str, Any]:
    """Train one share of every batch with SGD; all wait for one another after every step.

    Gives the final state, and how many rows were not local in the second half of the steps.
    """
    shares = node.world_size * node.workers
    share = node.rank * node.workers + worker
    plain = clicks(seed=share)  # the first worker's weights are used by all workers
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE / shares)
    model = autoada.AdaModel(plain, optimizer, node=node, worker=worker)
    late = 0.0
    for step, batch in enumerate(autoada.AdaDataLoader(batches(steps, shares, share), 5, model=model)):
        before = node.stats()["pulled_remote"]
        loss = loss_of(model, batch)
        if step >= steps // 2:
            late += node.stats()["pulled_remote"] - before
        optimizer.zero_grad()
        loss.backward()
        model.worker.barrier()  # no worker pushes while another still reads
        optimizer.step()
        settle(model)
    state = as_lists(model.state_dict())
    model.worker.barrier()
    model.close()
    return {"state": state, "late": late}


def settle(model: autoada.AdaModel) -> None:
    """Wait until every worker sees the updates of all workers."""
    model.worker.wait_sync()
    model.worker.barrier()
    model.worker.wait_sync()


def as_lists(state: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in state.items()}
