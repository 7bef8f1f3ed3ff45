"""Training on the parameter server does the mathematics of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoada

ROWS = 30
STEPS = 100

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, initial_accumulator_value=0.1),
}


class Clicks(nn.Module):
    """Duplicates within a batch, two tables on the same ids, a padding row."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Embedding(ROWS, 1)
        self.deep = nn.Embedding(ROWS, 4, padding_idx=0, scale_grad_by_freq=True)
        self.mlp = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Any:
        return self.wide(ids).sum(1) + self.mlp(self.deep(ids).flatten(1))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sum = nn.EmbeddingBag(ROWS, 4, mode="sum", padding_idx=3)
        self.mean = nn.EmbeddingBag(ROWS, 4)
        self.max = nn.EmbeddingBag(ROWS, 4, mode="max", max_norm=1.0)

    def forward(self, ids: Tensor) -> Any:
        weights = torch.linspace(0.5, 1.5, ids.numel()).view(ids.shape)
        offsets = torch.arange(0, ids.numel(), 2)
        bags = self.sum(ids, per_sample_weights=weights)
        return ((bags * self.max(ids)).sum(1) + self.mean(ids.flatten(), offsets)[: len(ids)].sum(1))[:, None]


class Tied(nn.Module):
    """One table read by ids, renormalised, and in full by the head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS, 8)
        self.places = nn.Parameter(torch.randn(4, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, ROWS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Any:
        places = F.embedding(torch.arange(ids.shape[1]), self.places, max_norm=2.0)
        return self.head(self.encoder(self.tokens(ids) + places)).logsumexp(-1).mean(1, keepdim=True)


class Repeated(nn.Module):
    """One table through every form of lookup, so that its gradients come from many places."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4)

    def forward(self, ids: Tensor) -> Any:
        rows = self.table.weight
        x = self.table(ids) * rows[ids[:, :1]] + rows[2:4].sum(0) - rows[-1]
        x = x + rows.index_select(0, ids[:, 0]).unsqueeze(1) + rows[ids % 3]
        return x.sum((1, 2))[:, None] * 0.1


class EveryRow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Any:
        rows = self.table(torch.arange(8))
        return self.out(rows[ids % 8].mean(1))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Clicks, Bags, Tied, Repeated])
def test_losses_equal_those_of_plain_pytorch(kind: type[nn.Module], optimizer: str) -> None:
    tables = ["places"] if kind is Tied else None
    plain, _ = train(kind, OPTIMIZERS[optimizer])
    losses, model = train(kind, OPTIMIZERS[optimizer], lambda m, o: autoada.AdaModel(m, o, tables=tables))
    model.close()
    assert losses == pytest.approx(plain, abs=1e-5)
    assert losses[0] != losses[-1]


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    ],
    ids=["momentum", "adam"],
)
def test_optimizers_with_memory_are_exact_where_every_row_has_a_gradient(make: Make) -> None:
    """They are lazy: a row without a gradient stays, which plain PyTorch's dense ones would go on moving."""
    plain, _ = train(EveryRow, make)
    losses, model = train(EveryRow, make, autoada.AdaModel)
    model.close()
    assert losses == pytest.approx(plain, abs=1e-5)


def test_the_loop_without_an_optimizer_updates_by_adagrad_in_the_backward_pass() -> None:
    plain, _ = train(Clicks, lambda parameters: torch.optim.Adagrad(parameters, lr=0.01))
    torch.manual_seed(0)
    model = autoada.AdaModel(Clicks())
    loader = autoada.AdaDataLoader(batches())
    criterion = nn.BCEWithLogitsLoss()
    losses = []
    for ids, label in loader:
        loss = criterion(model(ids), label)
        loss.backward()
        losses.append(loss.item())
    model.close()
    assert losses == pytest.approx(plain, abs=1e-5)


class ClipAndDecay:
    """What users put around ``optimizer.step()``."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.3)

    def before_step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)

    def after_step(self) -> None:
        self.scheduler.step()


def test_a_scheduler_and_gradient_clipping_work() -> None:
    plain, _ = train(Clicks, OPTIMIZERS["sgd"], around=ClipAndDecay)
    losses, model = train(Clicks, OPTIMIZERS["sgd"], autoada.AdaModel, around=ClipAndDecay)
    model.close()
    unclipped, _ = train(Clicks, OPTIMIZERS["sgd"])
    assert losses == pytest.approx(plain, abs=1e-5)
    assert losses != pytest.approx(unclipped, abs=1e-3)


def test_gradients_accumulate_until_the_step() -> None:
    plain, _ = train(Clicks, OPTIMIZERS["adagrad"], every=3)
    losses, model = train(Clicks, OPTIMIZERS["adagrad"], autoada.AdaModel, every=3)
    model.close()
    assert losses == pytest.approx(plain, abs=1e-5)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randint(0, ROWS, (16, 4), generator=generator),
            torch.randint(0, 2, (16, 1), generator=generator).float(),
        )
        for _ in range(STEPS)
    ]


def train(
    kind: type[nn.Module],
    make: Make,
    wrap: Callable[[nn.Module, torch.optim.Optimizer], nn.Module] | None = None,
    around: type[ClipAndDecay] | None = None,
    every: int = 1,
) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    model = kind()
    optimizer = make(model.parameters())
    if wrap is not None:
        model = wrap(model, optimizer)
    extras = None if around is None else around(model, optimizer)
    losses = []
    for i, (ids, label) in enumerate(batches()):
        loss = F.binary_cross_entropy_with_logits(model(ids), label)
        loss.backward()
        if extras is not None:
            extras.before_step()
        if (i + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
        if extras is not None:
            extras.after_step()
        losses.append(loss.item())
    return losses, model
