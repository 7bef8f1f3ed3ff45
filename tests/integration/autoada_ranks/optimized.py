"""Trains a share of the batches with several optimizers and without synchronization between the steps.

The ranks do not wait for each other, and no loader counts clocks: the server exchanges changes when it
chooses to, within the staleness limit.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoada
from tests.integration.autoada_ranks.task import BATCH, FIELDS, ROWS, clicks
from tests.integration.guarantees.common import RANK

Optimizers = list[torch.optim.Optimizer]


def _own(model: Any) -> Optimizers:
    """AMSGrad is no rule of the server: an embedding and the dense layers keep it, on shared gradients."""
    return [
        torch.optim.SGD([model.wide.weight], lr=0.1, momentum=0.9),
        torch.optim.Adam([model.deep.weight, *model.mlp.parameters()], lr=0.01, amsgrad=True),
    ]


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizers]] = {
    "momentum": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)],
    "Nesterov": lambda m: [
        torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    ],
    "AdamW": lambda m: [torch.optim.AdamW(m.parameters(), lr=0.01, betas=(0.9, 0.95))],
    "RMSprop": lambda m: [torch.optim.RMSprop(m.parameters(), lr=0.005, alpha=0.9, momentum=0.5)],
    "own": _own,
}
STEPS = 800
"""Steps of all ranks together."""


def batches(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    truth = torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, ROWS, (count, BATCH, FIELDS), generator=generator)
    return [(x, (truth[x].sum(1, keepdim=True) > 0).float()) for x in ids]


def train(model: Any, optimizers: Optimizers, share: list[tuple[Tensor, Tensor]]) -> None:
    for ids, label in share:
        F.binary_cross_entropy_with_logits(model(ids), label).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def quality(model: nn.Module) -> float:
    """The loss of batches that were not trained on."""
    model.eval()
    with torch.no_grad():
        losses = [F.binary_cross_entropy_with_logits(model(ids), label) for ids, label in batches(40, 99)]
    return torch.stack(losses).mean().item()


def plainly(name: str) -> float:
    """The loss that one process reaches by training on all batches."""
    model = clicks()
    train(model, OPTIMIZERS[name](model), batches(STEPS, 7))
    return quality(model)


def optimized(names: Sequence[str]) -> dict[str, Any]:
    # Hides the warnings about AdamW and idle rows, and about an embedding that is not a table.
    logging.getLogger("autoada").setLevel(logging.ERROR)
    result = {}
    for name in names:
        plain = clicks(seed=RANK)
        optimizers = OPTIMIZERS[name](plain)
        model = autoada.AdaModel(plain, optimizers)
        world = model.node.world_size
        train(model, optimizers, batches(STEPS, 7)[RANK::world])
        model.worker.end_setup()
        dense = torch.cat([each.detach().flatten() for each in [plain.deep.weight, *plain.mlp.parameters()]])
        result[name] = {"quality": quality(model), "dense": dense.tolist()}
        model.worker.barrier()
        model.close()
    return result
