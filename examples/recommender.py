"""A recommender: a plain PyTorch model of clicks, wrapped so that its tables live in the parameter server.

It has 26 categorical and 13 numerical features, with similar frequencies to the Criteo logs. The clicks are
generated. The two lines with `aa` are the difference to plain PyTorch.

    python examples/recommender.py
    torchrun --nproc-per-node 2 examples/recommender.py
"""

import argparse
import logging

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autoada as aa

FIELDS, NUMBERS = 26, 13


class Recommender(nn.Module):
    """A table of all categories, and a perceptron over their embeddings and the numbers."""

    def __init__(self, categories: int, dim: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(FIELDS * categories, dim, sparse=True)
        self.register_buffer("first_rows", torch.arange(FIELDS) * categories)
        self.layers = nn.Sequential(nn.Linear(FIELDS * dim + NUMBERS, 64), nn.ReLU(), nn.Linear(64, 1))
        nn.init.normal_(self.embedding.weight, std=0.05)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        rows = self.embedding(categories + self.first_rows).flatten(1)
        return self.layers(torch.cat([rows, numbers], dim=1)).squeeze(1)


def clicks(samples: int, categories: int) -> TensorDataset:
    """Generated samples, the same on every node: some values of each field are clicked more often."""
    generator = torch.Generator().manual_seed(0)
    frequency = 1.0 / torch.arange(1, categories + 1) ** 1.05  # The frequencies follow Zipf's law.
    ids = torch.multinomial(frequency, samples * FIELDS, replacement=True, generator=generator)
    ids = ids.view(samples, FIELDS)
    numbers = torch.randn(samples, NUMBERS, generator=generator)
    liked = torch.randn(FIELDS, categories, generator=generator)
    score = liked[torch.arange(FIELDS), ids].sum(1) / FIELDS**0.5 + numbers[:, 0]
    clicked = torch.rand(samples, generator=generator) < torch.sigmoid(2 * score)
    return TensorDataset(ids, numbers, clicked.float())


def area_under_curve(scores: Tensor, clicked: Tensor) -> float:
    """The chance that a clicked sample scores higher than another one."""
    ranks = scores.argsort().argsort().double() + 1
    positive, negative = clicked.sum(), (1 - clicked).sum()
    return float((ranks[clicked > 0].sum() - positive * (positive + 1) / 2) / (positive * negative))


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a recommender on generated clicks.")
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--categories", type=int, default=1_000, help="values of each field")
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)

    data = clicks(given.samples, given.categories)
    train = TensorDataset(*data[: given.samples * 9 // 10])
    ids, numbers, clicked = data[given.samples * 9 // 10 :]

    model = Recommender(given.categories)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    model = aa.AdaModel(model, optimizer)
    loader = aa.AdaDataLoader(DataLoader(train, batch_size=256, shuffle=True), shard=True)

    for epoch in range(given.epochs):
        for categories, values, label in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(categories, values), label)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if model.worker_index == 0:
            model.eval()
            with torch.no_grad():
                area = area_under_curve(model(ids, numbers), clicked)
            model.train()
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, AUC {area:.3f}")
    model.close()


if __name__ == "__main__":
    main()
