"""Trains and writes a checkpoint, or restores one; then rank 0 makes one more step.

The ranks push one after the other, so that nothing depends on the order in which pushes arrive.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import autoada
from tests.integration.autoada_ranks.task import as_lists, batches, clicks, loss_of, settle

BATCHES = 12
ROUNDS = 3

Optimizer = torch.optim.Optimizer


def _adam(model: nn.Module) -> list[Optimizer]:
    rows = [parameter for name, parameter in model.named_parameters() if "mlp" not in name]
    dense = [parameter for name, parameter in model.named_parameters() if "mlp" in name]
    return [torch.optim.SparseAdam(rows, lr=0.01), torch.optim.Adam(dense, lr=0.01)]


OPTIMIZERS: dict[str, Callable[[nn.Module], list[Optimizer]]] = {
    "Adagrad": lambda model: [torch.optim.Adagrad(model.parameters(), lr=0.1)],
    "SparseAdam": _adam,
}


def resumed(directory: str, optimizer: str, restore: bool) -> dict[str, Any]:
    """States before and after the one step, and where the loader went on after the checkpoint."""
    plain = clicks(seed=3 if restore else 0)
    optimizers = OPTIMIZERS[optimizer](plain)
    model = autoada.AdaModel(plain, optimizers)
    rank, world = model.node.rank, model.node.world_size
    share = list(enumerate(batches(BATCHES, 1)))[rank::world]
    loader = autoada.AdaDataLoader(share, 2)

    def step(batch: Any, turns: int) -> None:
        for turn in range(turns):
            if turn == rank:
                for each in optimizers:
                    each.zero_grad()
                loss_of(model, batch).backward()
                for each in optimizers:
                    each.step()
            settle(model)

    iterator = iter(loader)
    if restore:
        model.restore(directory, loader)
    else:
        for _ in range(ROUNDS):
            step(next(iterator)[1], world)
        model.checkpoint(directory, loader)
    before = as_lists(model.state_dict())
    settle(model)
    number, batch = next(iterator)
    step(batch, 1)
    after = as_lists(model.state_dict())
    model.worker.barrier()
    model.close()
    return {"before": before, "after": after, "next": number, "epoch": loader.epoch}


def all_resumed(directory: str, restore: bool) -> dict[str, Any]:
    return {name: resumed(f"{directory}/{name}", name, restore) for name in OPTIMIZERS}
