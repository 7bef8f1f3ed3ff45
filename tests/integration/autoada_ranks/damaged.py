"""Trains until a process of rank 1's loader reads a damaged item; an earlier batch names a missing row.

Rank 1 skips that batch and continues; the other ranks continue until they learn that rank 1 is lost.
"""

import gc

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

import adaps
import autoada
from tests.integration.autoada_ranks.task import FIELDS, ROWS, clicks
from tests.integration.guarantees.common import RANK, report

MISSING, DAMAGED, ITEMS = 50, 100, 10**6


class DamagedItem(Exception):
    pass


class Items(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        if RANK == 1 and item == DAMAGED:
            raise DamagedItem(f"item {item} is damaged")
        ids = torch.arange(item + RANK, item + RANK + FIELDS) % ROWS  # each rank has different data
        if RANK == 1 and item == MISSING:
            ids[0] = -1
        return ids, torch.ones(1)


model = clicks()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
missing, cause, steps = "", "", 0
try:
    with autoada.create_node(model, optimizer) as node:
        wrapped = autoada.AdaModel(model, optimizer, node=node)
        for ids, label in autoada.AdaDataLoader(DataLoader(Items(), 8, num_workers=RANK), 2):
            optimizer.zero_grad()
            try:
                loss = torch.nn.functional.mse_loss(wrapped(ids), label)
            except IndexError as error:
                missing = str(error)
                continue
            loss.backward()
            optimizer.step()
            steps += 1
except (adaps.PeerLost, DamagedItem) as error:
    cause = f"{type(error).__name__}: {error}"
gc.collect()  # torch's exception refers to itself, and to its loader
report(missing=missing, cause=cause, steps=steps, left=len(psutil.Process().children(recursive=True)))
