"""Trains a model on two hosts, as the README shows it, without any address in the configuration.

``python -m tests.integration.hosts.train FOLDER`` under torchrun; each rank writes its results.
"""

import json
import logging
import os
import sys
from pathlib import Path

import torch
from torch import nn

import autoada

ROWS, STEPS = 200, 30


def main() -> None:
    rank = int(os.environ["RANK"])
    logging.basicConfig(filename=Path(sys.argv[1]) / f"log-{rank}", level=logging.INFO)
    torch.manual_seed(0)
    model = autoada.AdaModel(nn.Sequential(nn.Embedding(ROWS, 4), nn.Flatten(), nn.Linear(16, 1)))
    generator = torch.Generator().manual_seed(rank)
    batches = [torch.randint(0, ROWS, (16, 4), generator=generator)] * STEPS
    losses = []
    for ids in autoada.AdaDataLoader(batches):
        loss = (model(ids) - 1.0).square().mean()
        loss.backward()
        losses.append(loss.item())
    for _ in range(2):
        model.worker.wait_sync()
        model.worker.barrier()
    with torch.no_grad():
        outputs = model.eval()(torch.arange(ROWS).view(-1, 4)).flatten().tolist()
    found = {"losses": losses, "outputs": outputs, "sent": model.node.stats()["bytes_sent"]}
    model.close()
    (Path(sys.argv[1]) / f"result-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
