"""Raw ids: a recommender whose ids are hashes of strings, without a pass that numbers them first.

The visits of users to pages are generated. New users and pages come in every epoch, and a row of the table is
created when its id is first used.

    python examples/raw_ids.py
    torchrun --nproc-per-node 2 examples/raw_ids.py
"""

import argparse
import hashlib
import logging

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autoada as aa


def id_of(text: str) -> int:
    """A hash of 64 bits, equal in all processes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


class Visits(nn.Module):
    """Predicts from the embeddings of a user and a page how long the user stays there."""

    def __init__(self, capacity: int, dim: int = 8) -> None:
        super().__init__()
        self.embedding = aa.HashEmbedding(dim, capacity, seed=0, sparse=True)
        self.layers = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.embedding(ids).flatten(1)).squeeze(1)


def visits(samples: int, epoch: int) -> TensorDataset:
    """Generated visits, the same on every node; users and pages of later epochs are partly new."""
    generator = torch.Generator().manual_seed(epoch)
    users, pages = torch.randint(50 * epoch, 50 * epoch + 200, (2, samples), generator=generator).tolist()
    ids = [[id_of(f"user {u}"), id_of(f"/page/{p}.html")] for u, p in zip(users, pages, strict=True)]
    minutes = [(u % 7 + p % 5) / 10 for u, p in zip(users, pages, strict=True)]
    return TensorDataset(torch.tensor(ids), torch.tensor(minutes))


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a model of generated visits on raw ids.")
    parser.add_argument("--samples", type=int, default=20_000, help="visits of each epoch")
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)

    model = Visits(capacity=100_000)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    model = aa.AdaModel(model, optimizer)
    for epoch in range(given.epochs):
        loader = DataLoader(visits(given.samples, epoch), batch_size=128, shuffle=True)
        for ids, minutes in aa.AdaDataLoader(loader, shard=True):
            loss = nn.functional.mse_loss(model(ids), minutes)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if model.worker_index == 0:
            rows = len(model.state_dict()["embedding.ids"])
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {rows} ids so far")
    model.close()


if __name__ == "__main__":
    main()
