"""Trains with negatives that each node draws, by every scheme."""

from typing import Any

import torch
from torch import Tensor, nn

import adaps
import autoada
from tests.integration.guarantees.common import RANK, report

ROWS, DRAWN, STEPS = 400, 20, 60


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4)

    def forward(self, ids: Tensor, drawn: Tensor) -> Any:
        return (self.items(ids).sum(0) * self.items(drawn).sum(0)).sum()


found = {}
for scheme in adaps.SAMPLING_SCHEMES:
    torch.manual_seed(1)
    model = Pairs()
    negatives = autoada.NegativeSampler(model.items, DRAWN, adaps.Sampling(adaps.LogUniform(), scheme))
    wrapped = autoada.AdaModel(model, adaps.SGD(lr=1e-3))
    own = torch.arange(RANK * 10, RANK * 10 + 10)
    batches = ((own, negatives()) for _ in range(STEPS))
    rows = 0
    for ids, drawn in autoada.AdaDataLoader(batches, lookahead=4):
        rows += len(drawn)
        wrapped(ids, drawn).backward()
    wrapped.worker.wait_sync()
    wrapped.worker.barrier()
    wrapped.worker.wait_sync()
    stats = wrapped.node.stats()
    found[scheme] = {
        "rows": rows,
        "announced": stats["intents"],
        "fallback": stats["sampled_fallback"],
        "sum": float(autoada.unwrap(wrapped).state_dict()["items.weight"].double().sum()),
    }
    wrapped.worker.barrier()
    wrapped.close()
report(**found)
