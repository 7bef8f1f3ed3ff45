"""Hugging Face Accelerate: a loop that wraps its model before the accelerator prepares it.

The line with `prepare_model` replaces `accelerator.prepare(model)`, which adds DistributedDataParallel on
several nodes.

    python examples/trainers/accelerate_loop.py
    torchrun --nproc-per-node 2 examples/trainers/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from clicks import Clicks, click_data
from torch import nn
from torch.utils.data import DataLoader

import autoada as aa


def main(samples: int = 4096, epochs: int = 2, batch_size: int = 64) -> nn.Module:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model = aa.AdaModel(model, optimizer)
    model = accelerator.prepare_model(model, evaluation_mode=True)  # without DistributedDataParallel
    optimizer = accelerator.prepare(optimizer)
    loader = aa.AdaDataLoader(DataLoader(click_data(samples), batch_size=batch_size), shard=True)
    for epoch in range(epochs):
        for ids, clicked in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(ids), clicked)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    return model


if __name__ == "__main__":
    main().close()
