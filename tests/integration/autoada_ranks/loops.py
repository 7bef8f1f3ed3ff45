"""Training loops of ranks: together step by step, under a policy, and with mistakes in them or the data."""

import gc
import logging
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

import adaps
import autoada
from tests.integration.autoada_ranks.task import (
    FIELDS,
    RATE,
    ROWS,
    batches,
    clicks,
    loss_of,
    node_for,
    settle,
    train_share,
)
from tests.integration.guarantees.common import RANK

MISSING, DAMAGED, ITEMS = 50, 100, 10**6


def synchronous(shares: int, steps: int) -> dict[str, Any]:
    """Train a share of every batch."""
    node = node_for(shares, workers=1)
    result = train_share(node, 0, steps)
    node.close()
    return result


def managed(shares: int, steps: int, policy: str) -> dict[str, Any]:
    """Train a share of every batch under a policy.

    The result has the counters of each table, and the rows grouped by what happened to them.
    """
    model = clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE / shares)
    node = autoada.create_node(model, optimizer, policy=adaps.Policy.parse(policy))
    node.trace(np.arange(node.num_keys))
    result = train_share(node, 0, steps)
    node.close()
    events = adaps.trace_frame(node)
    rows = {
        table.name: {
            str(event): sorted(set(found["row"].tolist()))
            for event, found in events[events["table"] == table.name].groupby("event")
        }
        for table in node.tables
    }
    tables = {table.name: table.stats() for table in node.tables}
    return {**result, "tables": tables, "rows": rows, "total": node.stats()}


def state_saved(file: str) -> dict[str, Any]:
    """Train for some steps, and save the state."""
    model = autoada.AdaModel(clicks(seed=0), adaps.Adagrad(lr=0.01))
    for batch in autoada.AdaDataLoader(batches(20, 2, RANK)):
        loss_of(model, batch).backward()
    settle(model)
    if RANK == 0:
        torch.save(model.state_dict(), file)
    return scores_of(model)


def state_loaded(file: str) -> dict[str, Any]:
    """Load the saved state."""
    model = autoada.AdaModel(clicks(seed=5), adaps.Adagrad(lr=0.01))
    deep = model.module.get_parameter("deep.weight")
    deep.sum()  # a node that has read the whole table reads it again after the state was loaded
    model.load_state_dict(torch.load(file))
    assert torch.equal(deep.detach().clone(), torch.load(file)["deep.weight"])
    return scores_of(model)


def scores_of(model: autoada.AdaModel) -> dict[str, Any]:
    model.eval()
    with torch.no_grad():
        scores = model(torch.arange(ROWS).view(-1, 4)).flatten().tolist()
    model.worker.barrier()
    model.close()
    return {"scores": scores}


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


def damaged_item() -> dict[str, Any]:
    """Train until a process of rank 1's loader reads a damaged item; an earlier batch names a missing row.

    Rank 1 skips that batch and continues; the other ranks continue until they learn that rank 1 is lost.
    """
    found = steps_to_the_damage()
    gc.collect()  # torch's exception refers to itself, and to its loader
    return {**found, "left": len(psutil.Process().children(recursive=True))}


def steps_to_the_damage() -> dict[str, Any]:
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
    return {"missing": missing, "cause": cause, "steps": steps}


class Messages(logging.Handler):
    """Keeps messages."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


def penalised() -> dict[str, Any]:
    """Train with a penalty on all parameters, which the loop computes; the result has the warnings."""
    messages = Messages()
    logging.getLogger("autoada").addHandler(messages)
    plain = clicks()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    model = autoada.AdaModel(plain, optimizer)
    for batch in autoada.AdaDataLoader(batches(12, 2, RANK)):
        penalty = torch.stack([parameter.pow(2).sum() for parameter in model.parameters()]).sum()
        loss = loss_of(model, batch) + 0.01 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.worker.barrier()
    model.close()
    return {"messages": messages.seen}
