"""skorch: a net that wraps its module when it creates its optimizer.

The class `AdaClassifier` is the difference to plain PyTorch.

    python examples/trainers/skorch_net.py
    torchrun --nproc-per-node 2 examples/trainers/skorch_net.py
"""

from __future__ import annotations

from typing import Any

import torch
from clicks import Clicks, click_data
from skorch import NeuralNetBinaryClassifier
from torch import nn
from torch.utils.data import Dataset

import autoada as aa


class AdaClassifier(NeuralNetBinaryClassifier):
    """A binary classifier on the parameter server."""

    def initialize_optimizer(self, *args: Any, **kwargs: Any) -> AdaClassifier:
        super().initialize_optimizer(*args, **kwargs)
        self.module_ = aa.AdaModel(self.module_, self.optimizer_)
        return self

    def get_iterator(self, dataset: Dataset[Any], training: bool = False) -> Any:
        loader = super().get_iterator(dataset, training)
        return aa.AdaDataLoader(loader, shard=True) if training else loader


def main(samples: int = 4096, epochs: int = 2, batch_size: int = 64) -> nn.Module:
    torch.manual_seed(0)
    ids, clicked = click_data(samples).tensors
    net = AdaClassifier(
        Clicks, optimizer=torch.optim.SGD, lr=0.5, batch_size=batch_size, max_epochs=epochs, train_split=None
    )
    net.fit(ids, clicked)
    return net.module_


if __name__ == "__main__":
    main().close()
