"""Models that use PyTorch in ways that trip simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from .recommenders import BATCH, ROWS, ids
from .specimen import Specimen


class ControlFlow(nn.Module):
    """Python branches on the values of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Embedding(ROWS, 4)
        self.large = nn.Embedding(ROWS, 4)

    def forward(self, items: Tensor) -> Any:
        total = self.small(items).sum()
        if items.sum().item() % 2:
            total = total + self.large(items.unique()).sum()
        for item in items[:3].tolist():
            if item > ROWS // 2:
                total = total + self.small.weight[item].sum()
        return total.tanh()


class Routing(nn.Module):
    """The rows of `experts` depend on parameters; those of `items`, before and after them, do not."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4)
        self.gate = nn.Linear(4, 6)
        self.experts = nn.Embedding(6, 4)

    def forward(self, items: Tensor) -> Any:
        x = self.items(items)
        scores, choice = self.gate(x).softmax(-1).topk(2)
        mixed = (self.experts(choice) * scores.unsqueeze(-1)).sum(-2)
        return (mixed * self.items(items.flip(0))).sum(-1).tanh().mean()


class BareTables(nn.Module):
    """Parameters without an embedding module, read by every form of lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(ROWS, 16))
        self.b = nn.Parameter(torch.randn(ROWS, 16))
        self.c = nn.Parameter(torch.randn(ROWS, 16))

    def forward(self, items: Tensor) -> Any:
        x = F.embedding(items, self.a, max_norm=1.0)
        y = self.b[items - ROWS] + self.b[2:4].sum(0) + self.b[-1]
        z = self.c.index_select(0, items) + torch.embedding(self.c, items.flip(0))
        return (x * y * z).sum(-1).tanh().mean()


@dataclass
class Ratings:
    users: Tensor
    items: Tensor
    stars: Tensor


class Session(NamedTuple):
    clicks: Tensor
    mask: Tensor


class Factorization(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(ROWS, 16)
        self.items = nn.Embedding(ROWS, 16)
        self.user_bias = nn.Embedding(ROWS, 1)
        self.item_bias = nn.Embedding(ROWS, 1)

    def forward(self, batch: Ratings) -> Any:
        product = (self.users(batch.users) * self.items(batch.items)).sum(-1)
        return product + self.user_bias(batch.users)[:, 0] + self.item_bias(batch.items)[:, 0]


class MaskedSession(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 64)
        self.tower = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, session: Session) -> Any:
        rows = self.tower(self.items(session.clicks[session.mask]))
        owner = session.mask.nonzero()[:, 0]
        summed = torch.zeros(BATCH, 64).index_add_(0, owner, rows)
        return summed.tanh().mean()


class MutatesInput(nn.Module):
    """Shifts ids in place, both in its batch and in its own buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS + 1, 4)
        self.register_buffer("seen", torch.zeros(ROWS + 1, dtype=torch.int64))
        self.popular = nn.Embedding(ROWS + 1, 4)

    def forward(self, batch: dict[str, Tensor]) -> Any:
        items = batch.pop("items")
        items += 1
        items[0] = 0
        self.seen[items] += 1
        return (self.items(items) + self.popular(self.seen.argmax())).tanh().mean()


class Hidden(nn.Module):
    """The table's module is reached through a lambda and a list, never as a submodule of the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4)
        secret = nn.Linear(4, 4)
        self.steps: list[Callable[[Tensor], Tensor]] = [lambda x: self.table(x), secret, torch.relu]
        self.secret = secret

    def forward(self, items: Tensor) -> Any:
        x = items
        for step in self.steps:
            x = step(x)
        return x.mean()


class CompiledPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 16)
        self.tail = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.ReLU()), backend="eager")
        self.more = nn.Embedding(ROWS, 16)

    def forward(self, items: Tensor) -> Any:
        return (self.tail(self.items(items)) * self.more(items // 2)).mean()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.2))
        self.more = nn.Embedding(ROWS, 4)

    def forward(self, items: Tensor) -> Any:
        x = checkpoint(self.block, self.items(items), use_reentrant=False)
        if torch.isnan(x).any():
            raise FloatingPointError("not a number")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.block[0](x)
        return (y.float() * self.more(torch.bucketize(items, torch.tensor([5, 20])))).mean()


class Siamese(nn.Module):
    """One table several times per forward, under `vmap` too."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 16, scale_grad_by_freq=True)

    def forward(self, pairs: Tensor) -> Any:
        left, right = self.items(pairs[:, 0]), self.items(pairs[:, 1])
        centre = torch.vmap(lambda row: self.items.weight[row].mean(0))(pairs)
        return ((left - right).norm(dim=1) + centre.sum(1)).mean()


class Interacting(nn.Module):
    """Passes out=None explicitly, and selects from unknown values by a known mask."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 32)
        self.project = nn.Parameter(torch.randn(32, 64))
        self.head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.more = nn.Embedding(ROWS, 64)

    def forward(self, items: Tensor) -> Any:
        fields = self.items(items)
        attended = self.head(torch.tensordot(fields, self.project, dims=([-1], [0])))
        pooled = torch.mean(attended, dim=1, out=None) + torch.sum(attended, dim=1, out=None)
        valid = (items > 3).unsqueeze(-1)
        kept = torch.masked_select(attended, valid).view(-1, 64)
        return (pooled * self.more(items[:, 0])).tanh().mean() + kept.tanh().mean()


def ratings(generator: Generator) -> Ratings:
    return Ratings(ids(generator, BATCH), ids(generator, BATCH), torch.rand(BATCH, generator=generator))


def session(generator: Generator) -> Session:
    mask = torch.rand(BATCH, 5, generator=generator) < 0.6
    return Session(ids(generator, BATCH, 5), mask)


def plain(generator: Generator) -> Tensor:
    return ids(generator, BATCH)


def direct(model: nn.Module, batch: object) -> Any:
    return model(batch)


def sequential() -> nn.Module:
    return nn.Sequential(nn.Embedding(ROWS, 4), nn.Flatten(), nn.Linear(12, 1), nn.Flatten(0), nn.Tanh())


SPECIMENS = (
    Specimen("control flow", ControlFlow, plain, direct, data_dependent=True),
    Specimen("routing", Routing, plain, direct, unpredictable=("experts.weight",)),
    Specimen("bare tables", BareTables, plain, direct, tables=("a", "b", "c")),
    Specimen(
        "dataclass batch",
        Factorization,
        ratings,
        lambda model, batch: F.mse_loss(model(batch), batch.stars),
    ),
    Specimen("namedtuple batch", MaskedSession, session, direct),
    Specimen(
        "mutates its input",
        MutatesInput,
        lambda generator: {"items": plain(generator)},
        lambda model, batch: model(dict(batch, items=batch["items"].clone())),
        data_dependent=True,
    ),
    Specimen("hidden in a lambda", Hidden, plain, direct),
    Specimen("compiled part", CompiledPart, plain, direct),
    Specimen("checkpoint and autocast", Checkpointed, plain, direct),
    Specimen("siamese with vmap", Siamese, lambda generator: ids(generator, BATCH, 2), direct),
    Specimen(
        "explicit out and masked select", Interacting, lambda generator: ids(generator, BATCH, 6), direct
    ),
    Specimen("sequential", sequential, lambda generator: ids(generator, BATCH, 3), lambda m, b: m(b).mean()),
)
