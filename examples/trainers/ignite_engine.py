"""PyTorch Ignite: an engine that trains a wrapped model.

The two lines with `aa` are the difference to plain PyTorch.

    python examples/trainers/ignite_engine.py
    torchrun --nproc-per-node 2 examples/trainers/ignite_engine.py
"""

import torch
from clicks import Clicks, click_data
from ignite.engine import Engine, Events, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

import autoada as aa


def main(samples: int = 4096, epochs: int = 2, batch_size: int = 64) -> nn.Module:
    torch.manual_seed(0)
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model = aa.AdaModel(model, optimizer)
    loader = aa.AdaDataLoader(DataLoader(click_data(samples), batch_size=batch_size), shard=True)
    trainer = create_supervised_trainer(model, optimizer, nn.functional.binary_cross_entropy_with_logits)

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine: Engine) -> None:
        print(f"epoch {engine.state.epoch}: loss {engine.state.output:.3f}")

    trainer.run(loader, max_epochs=epochs)
    return model


if __name__ == "__main__":
    main().close()
