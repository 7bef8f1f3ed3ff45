"""The model and the data of these examples: clicks that depend on four categories each."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

FIELDS, ROWS = 4, 500


class Clicks(nn.Module):
    """One table for all categories, and a perceptron over their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, 8)
        self.layers = nn.Sequential(nn.Linear(FIELDS * 8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.embedding(ids).flatten(1)).squeeze(1)


def click_data(samples: int) -> TensorDataset:
    """Category ids and whether each sample was clicked, the same on every node."""
    generator = torch.Generator().manual_seed(0)
    ids = (ROWS * torch.rand(samples, FIELDS, generator=generator) ** 2).long()
    liked = torch.randn(ROWS, generator=generator)
    return TensorDataset(ids, (liked[ids].sum(1) > 0).float())
