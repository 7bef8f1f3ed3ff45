"""Training on the parameter server does the mathematics of plain PyTorch."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoada
from tests.plain_and_wrapped import click_batches, plain_and_wrapped, train

ROWS = 30
STEPS = 80

Optimizers = Sequence[torch.optim.Optimizer]
Make = Callable[[nn.Module], Optimizers]


class Clicks(nn.Module):
    """Duplicates within a batch, two tables on the same ids, a padding row."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.wide = nn.Embedding(ROWS, 1, sparse=sparse)
        self.deep = nn.Embedding(ROWS, 4, padding_idx=0, scale_grad_by_freq=not sparse, sparse=sparse)
        self.mlp = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Any:
        return self.wide(ids).sum(1) + self.mlp(self.deep(ids).flatten(1))


class Graph(nn.Module):
    """Vertices with embeddings, one layer of messages from neighbours; each vertex is looked up once."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.vertices = nn.Embedding(ROWS, 8, sparse=sparse)
        self.own = nn.Linear(8, 8)
        self.neighbours = nn.Linear(8, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Any:
        vertices, places = ids.unique(return_inverse=True)
        x = self.vertices(vertices)
        to, source = places[:, :1].expand(-1, 3).flatten(), places[:, 1:].flatten()
        messages = torch.zeros_like(x).index_add(0, to, self.neighbours(x)[source])
        return self.out(torch.relu(self.own(x) + messages))[places[:, 0]]


class Bags(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.sum = nn.EmbeddingBag(ROWS, 4, mode="sum", padding_idx=3, sparse=sparse)
        self.mean = nn.EmbeddingBag(ROWS, 4, sparse=sparse)
        self.max = nn.EmbeddingBag(ROWS, 4, mode="mean" if sparse else "max", max_norm=1.0, sparse=sparse)

    def forward(self, ids: Tensor) -> Any:
        weights = torch.linspace(0.5, 1.5, ids.numel()).view(ids.shape)
        offsets = torch.arange(0, ids.numel(), 2)
        bags = self.sum(ids, per_sample_weights=weights)
        return ((bags * self.max(ids)).sum(1) + self.mean(ids.flatten(), offsets)[: len(ids)].sum(1))[:, None]


class Words(nn.Module):
    """A transformer with a table of tokens and one of places, renormalised."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.sparse = sparse
        self.tokens = nn.Embedding(ROWS, 8, sparse=sparse)
        self.places = nn.Parameter(torch.randn(4, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, ROWS, bias=False)

    def forward(self, ids: Tensor) -> Any:
        places = F.embedding(torch.arange(ids.shape[1]), self.places, max_norm=2.0, sparse=self.sparse)
        return self.head(self.encoder(self.tokens(ids) + places)).logsumexp(-1).mean(1, keepdim=True)


class Tied(Words):
    """One table read by ids and in full by the head: every row has a gradient in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.tokens.weight


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


def one(kind: type[torch.optim.Optimizer], **options: Any) -> Make:
    """Makes one optimizer of all parameters."""
    return lambda model: [kind(model.parameters(), **options)]


def sparse_adam(model: nn.Module) -> Optimizers:
    names = {"wide", "deep", "sum", "mean", "max", "vertices", "tokens", "places"}
    tables = {name: p for name, p in model.named_parameters() if name.split(".")[0] in names}
    rest = [parameter for name, parameter in model.named_parameters() if name not in tables]
    optimizers = [torch.optim.SparseAdam(tables.values(), lr=0.01)]
    return [*optimizers, torch.optim.Adam(rest, lr=0.01)] if rest else optimizers


sgd = one(torch.optim.SGD, lr=0.1)
momentum = one(torch.optim.SGD, lr=0.02, momentum=0.9)
adagrad = one(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1)
adam = one(torch.optim.Adam, lr=0.01)
adamw = one(torch.optim.AdamW, lr=0.01, weight_decay=0.3)
decaying_adam = one(torch.optim.Adam, lr=0.01, weight_decay=0.02)
decaying_rmsprop = one(torch.optim.RMSprop, lr=0.002, eps=1e-3, weight_decay=0.02, momentum=0.5)
DENSE: dict[str, Make] = {
    "decaying SGD": one(torch.optim.SGD, lr=0.1, weight_decay=0.02),
    "Nesterov": one(torch.optim.SGD, lr=0.02, momentum=0.9, weight_decay=0.02, nesterov=True),
    "decaying Adagrad": one(torch.optim.Adagrad, lr=0.05, weight_decay=0.02),
    "decaying Adam": decaying_adam,
    "RMSprop": one(torch.optim.RMSprop, lr=0.002, alpha=0.9, eps=1e-3),
    "centered RMSprop": one(torch.optim.RMSprop, lr=0.001, alpha=0.9, eps=1e-2, momentum=0.8, centered=True),
    "decaying RMSprop": decaying_rmsprop,
}
"""Optimizers that change rows also in steps without a gradient."""


@pytest.mark.parametrize("make", [sgd, momentum, adagrad], ids=["SGD", "momentum", "Adagrad"])
@pytest.mark.parametrize("kind", [Clicks, Graph, Bags, Words, Tied, Repeated])
def test_losses_equal_those_of_plain_pytorch(kind: type[nn.Module], make: Make) -> None:
    assert_same(kind, make)


@pytest.mark.parametrize("name", DENSE)
def test_rows_without_a_gradient_change_as_in_pytorchs_dense_optimizers(name: str) -> None:
    assert_same(Clicks, DENSE[name])


@pytest.mark.parametrize("name", ["AdamW", *DENSE])
def test_rows_with_a_gradient_in_each_step_change_as_in_pytorch(name: str) -> None:
    assert_same(EveryRow, {"AdamW": adamw, **DENSE}[name])


def test_adamw_shrinks_rows_at_rest_as_pytorch_does() -> None:
    """The moments of PyTorch's dense AdamW go on moving them; a row that never had a gradient has none."""

    def resting(model: Any, optimizers: Optimizers) -> Tensor:
        ids = (torch.tensor([step % 2]) for step in range(100))
        train(model, optimizers, ids, lambda model, ids: model(ids).square().sum())
        rows: Tensor = model.state_dict()["0.weight"][2:]
        return rows

    plain, wrapped = plain_and_wrapped(
        lambda: nn.Sequential(nn.Embedding(6, 3)), one(torch.optim.AdamW, lr=0.01, weight_decay=0.5), resting
    )
    torch.testing.assert_close(wrapped, plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [Tied, EveryRow])
def test_adam_is_pytorchs_where_every_row_has_a_gradient(kind: type[nn.Module]) -> None:
    assert_same(kind, adam)


@pytest.mark.parametrize("kind", [Clicks, Graph, Bags, Words])
def test_sparse_adam_on_tables_and_adam_on_the_rest_are_pytorchs(kind: type[nn.Module]) -> None:
    assert_same(kind, sparse_adam, sparse=True)


@pytest.mark.parametrize("kind", [Clicks, Graph, Bags, Words])
def test_momentum_is_pytorchs_on_sparse_gradients(kind: type[nn.Module]) -> None:
    assert_same(kind, momentum, sparse=True)


def assert_same(kind: type[nn.Module], make: Make, **options: Any) -> None:
    def run(model: Any, optimizers: Optimizers) -> tuple[list[float], dict[str, Tensor]]:
        return train(model, optimizers, batches(), loss_of), model.state_dict()

    tables = ["places"] if issubclass(kind, Words) else None
    (plain, _), (losses, state) = plain_and_wrapped(lambda: kind(**options), make, run, tables=tables)
    assert losses == pytest.approx(plain, abs=1e-5, rel=0)
    torch.manual_seed(0)
    for name, start in kind(**options).state_dict().items():
        assert (state[name] - start).abs().max() > 1e-3, name


def loss_of(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


def test_the_loop_without_an_optimizer_updates_by_adagrad_in_the_backward_pass() -> None:
    torch.manual_seed(0)
    plain = Clicks()
    expected = train(plain, one(torch.optim.Adagrad, lr=0.01)(plain), batches(), loss_of)
    torch.manual_seed(0)
    model = autoada.AdaModel(Clicks())
    losses = []
    for batch in autoada.AdaDataLoader(batches()):
        loss = loss_of(model, batch)
        loss.backward()
        losses.append(loss.item())
    model.close()
    assert losses == pytest.approx(expected, abs=1e-5, rel=0)


class Cycle:
    """A learning rate and a momentum that change in each step, and a weight decay that is set later."""

    def __init__(self, model: nn.Module, optimizers: Optimizers) -> None:
        (self.optimizer,) = optimizers
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=self.optimizer.param_groups[0]["lr"], total_steps=STEPS + 1
        )
        self.steps = 0

    def before_step(self) -> None:
        self.steps += 1
        if self.steps > STEPS // 2:
            self.optimizer.param_groups[0]["weight_decay"] = 0.1


class ClipAndDecay:
    """Code that users put around ``optimizer.step()``."""

    def __init__(self, model: nn.Module, optimizers: Optimizers) -> None:
        self.model = model
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], step_size=20, gamma=0.3)

    def before_step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)


def scheduled(kind: type[Cycle | ClipAndDecay], model: Any, optimizers: Optimizers) -> list[float]:
    """Losses of a loop with a scheduler, which `kind` makes, and with changes before each step."""
    around = kind(model, optimizers)
    losses = []
    for batch in batches():
        loss = loss_of(model, batch)
        loss.backward()
        around.before_step()
        optimizers[0].step()
        optimizers[0].zero_grad()
        around.scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (Cycle, momentum),
        (Cycle, decaying_adam),
        (Cycle, decaying_rmsprop),
        (ClipAndDecay, sgd),
        (ClipAndDecay, momentum),
    ],
)
def test_schedules_and_clipped_gradients_are_followed(kind: type[Cycle | ClipAndDecay], make: Make) -> None:
    plain, wrapped = plain_and_wrapped(Clicks, make, functools.partial(scheduled, kind))
    torch.manual_seed(0)
    model = Clicks()
    unscheduled = train(model, make(model), batches(), loss_of)
    assert wrapped == pytest.approx(plain, abs=1e-5, rel=0)
    assert wrapped != pytest.approx(unscheduled, abs=1e-3)


def test_gradients_accumulate_until_the_step() -> None:
    def accumulated(model: Any, optimizers: Optimizers) -> list[float]:
        losses = []
        for number, batch in enumerate(batches(), 1):
            loss = loss_of(model, batch)
            loss.backward()
            if number % 3 == 0:
                optimizers[0].step()
                optimizers[0].zero_grad()
            losses.append(loss.item())
        return losses

    plain, wrapped = plain_and_wrapped(Clicks, adagrad, accumulated)
    assert wrapped == pytest.approx(plain, abs=1e-5, rel=0)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (sgd, {"weight_decay": 0.1}, r"weight decay 0\.1.* it was 0 at first"),
        (sgd, {"momentum": 0.5}, r"can change its lr, momentum, betas and weight decay, but not its kind"),
        (adam, {"amsgrad": True}, r"cannot train .* with Adam with amsgrad=True"),
        (momentum, {"nesterov": True}, r"can change its lr"),
        (adagrad, {"eps": 0.1}, r"not its kind or its eps"),
    ],
)
def test_what_the_server_cannot_follow_is_refused_at_the_step(
    make: Make, options: dict[str, Any], message: str
) -> None:
    plain = Clicks()
    (optimizer,) = make(plain)
    model = autoada.AdaModel(plain, optimizer)
    for ids, _ in batches()[:2]:
        model(ids).sum().backward()
        optimizer.step()
    before = model.state_dict()
    optimizer.param_groups[0].update(options)
    model(ids).sum().backward()
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    after = model.state_dict()
    model.close()
    assert all(torch.equal(before[name], after[name]) for name in before)


def batches() -> list[tuple[Tensor, Tensor]]:
    return click_batches(ROWS, STEPS)
