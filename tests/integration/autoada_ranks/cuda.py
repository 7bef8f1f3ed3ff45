"""A node of two that share a CUDA device; each trains half of the data, by its own process."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import autoada
from tests.integration.autoada_ranks.task import settle
from tests.integration.guarantees.common import RANK, report

ROWS, WIDTH, SAMPLES, BATCH = 500, 16, 6400, 64

torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Flatten(), nn.Linear(3 * WIDTH, 1)).cuda()
true = torch.randn(ROWS, device="cuda")
ids = torch.randint(0, ROWS, (SAMPLES, 3))
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)
model = autoada.AdaModel(net, optimizer)
losses = []
for _ in range(3):
    total = 0.0
    mine: Any = ids[RANK::2].contiguous()
    loader = DataLoader(mine, batch_size=BATCH, pin_memory=True)
    for batch in autoada.AdaDataLoader(loader):
        on_device = batch.cuda(non_blocking=True)
        loss = F.mse_loss(model(on_device).squeeze(1), true[on_device].sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    losses.append(total)
settle(model)
with torch.no_grad():
    final = model.eval()(torch.arange(60, device="cuda").view(-1, 3)).flatten().tolist()
stats = model.node.stats()
pulled = sum(stats[f"pulled_{where}"] for where in ("local", "replica", "remote"))
model.worker.barrier()
model.close()
report(losses=losses, final=final, local=1 - stats["pulled_remote"] / pulled, intents=stats["intents"])
