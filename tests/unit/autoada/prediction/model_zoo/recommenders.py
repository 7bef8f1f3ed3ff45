"""Recommendation and click-through models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .specimen import Specimen

BATCH = 128
ROWS = 400


def ids(generator: Generator, *shape: int, rows: int = ROWS) -> Tensor:
    return torch.randint(0, rows, shape, generator=generator)


def click_batch(fields: int, rows: int = ROWS) -> Any:
    def make(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        return (
            torch.rand(BATCH, 13, generator=generator),
            ids(generator, BATCH, fields, rows=rows),
            torch.randint(0, 2, (BATCH,), generator=generator).float(),
        )

    return make


def click_loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    dense, sparse, label = batch
    return F.binary_cross_entropy_with_logits(model(dense, sparse), label)


class WideAndDeep(nn.Module):
    offsets: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Embedding(ROWS * 26, 1)
        self.deep = nn.Embedding(ROWS * 26, 4)
        self.register_buffer("offsets", torch.arange(26) * ROWS)
        self.mlp = nn.Sequential(nn.Linear(13 + 26 * 4, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Any:
        rows = sparse + self.offsets
        deep = self.mlp(torch.cat([dense, self.deep(rows).view(len(rows), -1)], 1))
        return (self.wide(rows).sum(1) + deep).squeeze(1)


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, 4, mode="sum") for _ in range(26))
        self.bottom = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 4))
        self.top = nn.Linear(4 + 27 * 26 // 2, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Any:
        x = self.bottom(dense)
        offsets = torch.arange(len(dense), device=dense.device)
        rows = [table(sparse[:, i].contiguous(), offsets) for i, table in enumerate(self.tables)]
        z = torch.stack([x, *rows], 1)
        pairs = torch.bmm(z, z.transpose(1, 2))
        i, j = torch.tril_indices(27, 27, -1)
        return self.top(torch.cat([x, pairs[:, i, j]], 1)).squeeze(1)


class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Embedding(ROWS, 1) for _ in range(6))
        self.second = nn.ModuleList(nn.Embedding(ROWS, 4, padding_idx=0) for _ in range(6))
        self.mlp = nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Any:
        linear = torch.cat([e(sparse[:, i]) for i, e in enumerate(self.first)], 1).sum(1)
        v = torch.stack([e(sparse[:, i]) for i, e in enumerate(self.second)], 1)
        interaction = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        deep = self.mlp(v.flatten(1)).squeeze(1)
        return linear + interaction + deep


class DeepCross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, 4, max_norm=1.0)
        self.cross = nn.ModuleList(nn.Linear(37, 37) for _ in range(3))
        self.head = nn.Linear(37, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Any:
        start = x = torch.cat([dense, self.embedding(sparse).flatten(1)], 1)
        for layer in self.cross:
            x = start * layer(x) + x
        return self.head(x).squeeze(-1)


class TwoTowers(nn.Module):
    """Bags with offsets, weights per sample and a padding row."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.EmbeddingBag(ROWS, 4, mode="sum", padding_idx=0, include_last_offset=True)
        self.item = nn.EmbeddingBag(ROWS, 4, mode="mean")

    def forward(self, users: Tensor, offsets: Tensor, weights: Tensor, items: Tensor) -> Any:
        u = F.normalize(self.user(users, offsets, per_sample_weights=weights), dim=1)
        v = F.normalize(self.item(items), dim=1)
        return u @ v.t()


def tower_batch(generator: Generator) -> dict[str, Tensor]:
    lengths = torch.randint(0, 5, (BATCH,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    count = int(offsets[-1])
    return {
        "users": ids(generator, count),
        "offsets": offsets,
        "weights": torch.rand(count, generator=generator),
        "items": ids(generator, BATCH, 3),
    }


def tower_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(**batch), torch.arange(BATCH))


class InterestNetwork(nn.Module):
    """DIN with a GRU over the history and attention to the target."""

    category_of: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ROWS, 4, padding_idx=0)
        self.category = nn.Embedding(10, 4)
        self.register_buffer("category_of", torch.arange(ROWS) % 10)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.attention = nn.Sequential(nn.Linear(24, 8), nn.PReLU(), nn.Linear(8, 1))
        self.head = nn.Linear(16, 1)

    def embed(self, items: Tensor) -> Any:
        return torch.cat([self.item(items), self.category(self.category_of[items])], -1)

    def forward(self, history: Tensor, target: Tensor) -> Any:
        states, _ = self.gru(self.embed(history))
        goal = self.embed(target).unsqueeze(1).expand_as(states)
        scores = self.attention(torch.cat([states, goal, states * goal], -1)).squeeze(-1)
        weights = scores.masked_fill(history == 0, -1e9).softmax(-1)
        summary = (weights.unsqueeze(-1) * states).sum(1)
        return self.head(torch.cat([summary, goal[:, 0]], 1)).squeeze(1)


def history_batch(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    return (
        ids(generator, BATCH, int(torch.randint(3, 8, (), generator=generator))),
        ids(generator, BATCH),
        torch.rand(BATCH, generator=generator),
    )


def history_loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0], target=batch[1]), batch[2])


SPECIMENS = (
    Specimen("wide and deep", WideAndDeep, click_batch(26), click_loss),
    Specimen("DLRM", DLRM, click_batch(26), click_loss),
    Specimen("DeepFM", DeepFM, click_batch(6), click_loss),
    Specimen("DCN-v2", DeepCross, click_batch(6), click_loss),
    Specimen("two towers", TwoTowers, tower_batch, tower_loss),
    Specimen("DIN with GRU", InterestNetwork, history_batch, history_loss),
)
