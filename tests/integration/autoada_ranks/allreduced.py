"""A node with all-reduced dense gradients: many buckets, steps at irregular intervals, and restarts."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import adaps
import autoada
from adaps.policy import Rule, Synchronization
from autoada.parameters import dense_allreduce
from tests.integration.autoada_ranks.task import RATE, Clicks, as_lists, batches, clicks, loss_of
from tests.integration.guarantees.common import RANK

STEPS = 12
MORE = 3
"""Steps that the last rank makes after the others have closed their models."""


class Branches(nn.Module):
    """A part that some batches do not use, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.clicks: Clicks = clicks()
        self.sometimes = nn.Linear(4, 1)
        self.never = nn.Linear(3, 2)
        self.frozen = nn.Linear(2, 1).requires_grad_(False)

    def forward(self, ids: Tensor, wanted: bool) -> Any:
        result = self.clicks(ids)
        return result + self.sometimes(self.clicks.deep(ids).mean(1)) if wanted else result


def branches(seed: int) -> Branches:
    torch.manual_seed(seed)
    return Branches()


def optimizers_of(model: Branches) -> list[torch.optim.Optimizer]:
    tables = [model.clicks.wide.weight, model.clicks.deep.weight]
    own = {id(table) for table in tables}
    dense = [parameter for parameter in model.parameters() if id(parameter) not in own]
    return [
        torch.optim.SGD(tables, lr=RATE),
        torch.optim.Adam(dense[:4], lr=0.01),
        torch.optim.SGD(dense[4:], lr=RATE, momentum=0.9, weight_decay=0.01),
    ]


def backward(model: nn.Module, plain: Branches, step: int, rank: int) -> float:
    """The gradients of a rank's batch: in one pass or several, clipped or not."""
    ids, label = batches(step + 1, 2, rank)[step]
    wanted = (step + rank) % 3 == 0
    parts = 2 if step >= 6 and (step + rank) % 2 else 1
    total = 0.0
    for part in range(parts):
        piece = slice(part * len(ids) // parts, (part + 1) * len(ids) // parts)
        loss = loss_of(lambda some: model(some, wanted), (ids[piece], label[piece])) / parts  # type: ignore[arg-type]
        loss.backward()
        total += loss.item()
    if step in (4, 9):
        torch.nn.utils.clip_grad_norm_(plain.clicks.mlp.parameters(), 0.01)
    return total


def policy() -> adaps.Policy:
    rules = [Rule("dense", technique="allreduce"), Rule("*", technique="static")]
    return adaps.Policy("reduced", rules, synchronization=Synchronization(1))


def trained(buckets: tuple[int, int], own_group: bool, checkpoint: str) -> dict[str, Any]:
    nodes = int(os.environ["WORLD_SIZE"])
    dense_allreduce.FIRST_BUCKET, dense_allreduce.BUCKET = buckets
    if own_group:
        port = int(os.environ["MASTER_PORT"])
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=RANK, world_size=nodes)
    plain = branches(seed=RANK)
    optimizers = optimizers_of(plain)
    model = autoada.AdaModel(plain, optimizers, policy=policy())
    early: list[int] = []

    def train(steps: range) -> list[float]:
        losses = []
        for step in steps:
            for optimizer in optimizers:
                optimizer.zero_grad()
            losses.append(backward(model, plain, step, RANK))
            early.append(sum(each._launched for each in model._wrapped._allreduced))
            for optimizer in optimizers:
                optimizer.step()
        return losses

    losses = train(range(STEPS // 2))
    if checkpoint:
        model.checkpoint(checkpoint)
        before = train(range(STEPS // 2, STEPS))
        if RANK == 0:
            backward(model, plain, 0, RANK)  # without a step: the all-reduce under way has no effect
        model.restore(checkpoint)
        losses += train(range(STEPS // 2, STEPS))
        assert losses[STEPS // 2 :] == before
    else:
        losses += train(range(STEPS // 2, STEPS))
    state = as_lists(model.state_dict())
    if nodes - 1 == RANK:
        losses += train(range(STEPS, STEPS + MORE))
        last = as_lists({name: value for name, value in model.state_dict().items() if "clicks" not in name})
    else:
        last = {}
    model.close()
    if own_group:
        told = torch.tensor([1.0])
        dist.all_reduce(told)
        assert told.item() == nodes
        dist.destroy_process_group()
    return {"state": state, "losses": losses, "early": early, "last": last}
