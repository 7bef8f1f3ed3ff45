"""Lightning: a module that wraps its model where it creates its optimizer.

Under torchrun, each process has a trainer with one device, and the parameter server connects the processes.

    python examples/trainers/lightning_module.py
    torchrun --nproc-per-node 2 examples/trainers/lightning_module.py
"""

from typing import Any

import lightning
import torch
from clicks import Clicks, click_data
from torch import Tensor, nn
from torch.utils.data import DataLoader

import autoada as aa


class LitClicks(lightning.LightningModule):
    """Trains a model of clicks."""

    def __init__(self, samples: int, batch_size: int) -> None:
        super().__init__()
        self.samples, self.batch_size = samples, batch_size
        self.model = Clicks()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.model = aa.AdaModel(self.model, optimizer)
        return optimizer

    def train_dataloader(self) -> Any:
        return aa.AdaDataLoader(DataLoader(click_data(self.samples), self.batch_size), shard=True)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, clicked = batch
        return nn.functional.binary_cross_entropy_with_logits(self.model(ids), clicked)


def main(samples: int = 4096, epochs: int = 2, batch_size: int = 64) -> nn.Module:
    torch.manual_seed(0)
    module = LitClicks(samples, batch_size)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False
    )
    trainer.fit(module)
    return module.model


if __name__ == "__main__":
    main().close()
