"""A model with tables of ids, its batches, and equal ways to train it with and without the server."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoada
from tests.plain_and_wrapped import train

__all__ = [
    "CAPACITY", "HashClicks", "batches_of_ids", "hash_clicks", "loss_of", "rows_by_id", "steps",
]  # fmt: skip

CAPACITY = 400
FIELDS = 3


class HashClicks(nn.Module):
    def __init__(self, sparse: bool, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.wide = autoada.HashEmbedding(1, capacity, seed=1, sparse=sparse)
        self.deep = autoada.HashEmbedding(4, capacity, seed=2, sparse=sparse)
        self.mlp = nn.Sequential(nn.Linear(FIELDS * 4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Any:
        return self.wide(ids).sum(1) + self.mlp(self.deep(ids * 7 + 1).flatten(1))


def hash_clicks(sparse: bool = True, capacity: int = CAPACITY) -> HashClicks:
    torch.sparse.check_sparse_tensor_invariants.disable()  # PyTorch warns if it has to choose
    torch.manual_seed(0)
    return HashClicks(sparse, capacity)


def batches_of_ids(count: int, samples: int = 8, part: slice = slice(None)) -> list[tuple[Tensor, Tensor]]:
    """Batches with ids of 64 bits, of which later batches have new ones, and labels."""
    generator = torch.Generator().manual_seed(11)
    result = []
    for number in range(count):
        ids = torch.randint(0, 20 + 5 * number, (samples, FIELDS), generator=generator)
        label = (ids.sum(1, keepdim=True) % 3 == 0).float()
        result.append(((ids * -7046029254386353131)[part], label[part]))
    return result


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    ids, label = batch
    return F.binary_cross_entropy_with_logits(model(ids), label)


def steps(
    model: Any, optimizers: Sequence[torch.optim.Optimizer], batches: Iterable[tuple[Tensor, Tensor]]
) -> list[float]:
    """The losses of a step for each batch."""
    return train(model, optimizers, batches, loss_of)


def rows_by_id(state: dict[str, Tensor], table: str) -> dict[int, list[float]]:
    """The rows of a table by their ids, from a state dictionary."""
    pairs = zip(state[f"{table}.ids"].tolist(), state[f"{table}.weight"].tolist(), strict=True)
    return dict(pairs)
