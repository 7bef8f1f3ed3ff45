"""Trains, and returns what came of it; if it is to die, rank 1 is killed once, amid the second epoch.

That is between two checkpoints; the agent of torchrun has to start the ranks again.
"""

import os
import signal
from typing import Any

import torch
from torch.utils.data import DataLoader

import adaps.checkpoint
import autoada
from tests.integration.autoada_ranks.task import batches, clicks, loss_of

EPOCHS, BATCHES, EVERY, DIES_AT = 3, 12, 5, 8


def main(directory: str, dies: bool) -> dict[str, Any]:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dies = dies and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    torch.manual_seed(rank)
    plain = clicks(seed=rank)
    optimizer = torch.optim.Adagrad(plain.parameters(), lr=0.1)
    model = autoada.AdaModel(plain, optimizer)
    data: DataLoader[Any] = DataLoader(batches(BATCHES, world, rank), batch_size=None, shuffle=True)  # type: ignore[arg-type]
    loader = autoada.AdaDataLoader(data, 3)
    steps = 0
    if adaps.checkpoint.exists(directory):
        steps = model.restore(directory, loader)["steps"]
    restored = steps
    while loader.epoch < EPOCHS:
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            steps += 1
            if dies and steps == BATCHES + DIES_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            if steps % EVERY == 0:
                model.checkpoint(directory, loader, {"steps": steps})
    model.worker.barrier()
    with torch.no_grad():
        losses = [loss_of(model.eval(), batch).item() for batch in batches(BATCHES, world, rank)]
    model.worker.barrier()
    model.close()
    return {"restored": restored, "steps": steps, "loss": sum(losses) / len(losses)}
