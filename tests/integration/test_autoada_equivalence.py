"""Training on the parameter server does the mathematics of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoada

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


def of(kind: type[torch.optim.Optimizer], **options: Any) -> Make:
    return lambda model: [kind(model.parameters(), **options)]


def sparse_adam(model: nn.Module) -> Optimizers:
    names = {"wide", "deep", "sum", "mean", "max", "vertices", "tokens", "places"}
    tables = {name: p for name, p in model.named_parameters() if name.split(".")[0] in names}
    rest = [parameter for name, parameter in model.named_parameters() if name not in tables]
    optimizers = [torch.optim.SparseAdam(tables.values(), lr=0.01)]
    return [*optimizers, torch.optim.Adam(rest, lr=0.01)] if rest else optimizers


MAKES: dict[str, Make] = {
    "sgd": of(torch.optim.SGD, lr=0.1),
    "momentum": of(torch.optim.SGD, lr=0.02, momentum=0.9),
    "decaying sgd": of(torch.optim.SGD, lr=0.1, weight_decay=0.02),
    "nesterov": of(torch.optim.SGD, lr=0.02, momentum=0.9, weight_decay=0.02, nesterov=True),
    "default": of(torch.optim.Adagrad, lr=0.01),
    "adagrad": of(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1),
    "decaying adagrad": of(torch.optim.Adagrad, lr=0.05, weight_decay=0.02),
    "adam": of(torch.optim.Adam, lr=0.01),
    "decaying adam": of(torch.optim.Adam, lr=0.01, weight_decay=0.02),
    "adamw": of(torch.optim.AdamW, lr=0.01, weight_decay=0.3),
    "sparse adam": sparse_adam,
    "rmsprop": of(torch.optim.RMSprop, lr=0.002, alpha=0.9, eps=1e-3),
    "centered rmsprop": of(torch.optim.RMSprop, lr=0.001, alpha=0.9, eps=1e-2, momentum=0.8, centered=True),
    "decaying rmsprop": of(torch.optim.RMSprop, lr=0.002, eps=1e-3, weight_decay=0.02, momentum=0.5),
}
AT_REST = ["decaying sgd", "nesterov", "decaying adagrad", "decaying adam"]
AT_REST += ["rmsprop", "centered rmsprop", "decaying rmsprop"]
PLAIN = [Clicks, Graph, Bags, Words]


@pytest.mark.parametrize(
    ("kind", "make", "options"),
    [
        *((kind, make, {}) for kind in (*PLAIN, Tied, Repeated) for make in ("sgd", "momentum", "adagrad")),
        # Rows at rest change as in PyTorch's dense optimizers.
        *((Clicks, make, {}) for make in AT_REST),
        # Every row has a gradient in every step.
        *((EveryRow, make, {}) for make in ("adam", "adamw", *AT_REST)),
        (Tied, "adam", {}),
        *((kind, make, {"sparse": True}) for kind in PLAIN for make in ("sparse adam", "momentum")),
    ],
)
def test_losses_equal_those_of_plain_pytorch(
    kind: type[nn.Module], make: str, options: dict[str, Any]
) -> None:
    tables = ["places"] if issubclass(kind, Words) else None
    state = assert_same(kind, make, lambda m, o: autoada.AdaModel(m, o, tables=tables), **options)
    torch.manual_seed(0)
    for name, start in kind(**options).state_dict().items():
        assert (state[name] - start).abs().max() > 1e-3, name


def assert_same(kind: type[nn.Module], make: str, wrap: Any = autoada.AdaModel, **options: Any) -> Any:
    """Check that a wrapped model has the losses of the plain one; gives its state."""
    plain, _ = train(kind, make, **options)
    losses, model = train(kind, make, wrap, **options)
    state = model.state_dict()
    model.close()
    assert losses == pytest.approx(plain, abs=1e-5, rel=0)
    return state


def test_adamw_shrinks_rows_at_rest_as_pytorch_does() -> None:
    """The moments of PyTorch's dense AdamW go on moving them; a row that never had a gradient has none."""
    weights = []
    for wrap in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(6, 3)
        model: Any = nn.Sequential(table)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
        model = autoada.AdaModel(model, optimizer) if wrap else model
        for step in range(100):
            optimizer.zero_grad()
            model(torch.tensor([step % 2])).square().sum().backward()
            optimizer.step()
        weights.append(model.state_dict()["0.weight"][2:])
        if wrap:
            model.close()
    assert torch.allclose(weights[0], weights[1], atol=1e-6)


def test_the_loop_without_an_optimizer_updates_by_adagrad_in_the_backward_pass() -> None:
    plain, _ = train(Clicks, "default")
    torch.manual_seed(0)
    model = autoada.AdaModel(Clicks())
    losses = []
    for ids, label in autoada.AdaDataLoader(batches()):
        loss = F.binary_cross_entropy_with_logits(model(ids), label)
        loss.backward()
        losses.append(loss.item())
    model.close()
    assert losses == pytest.approx(plain, abs=1e-5, rel=0)


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

    def after_step(self) -> None:
        self.scheduler.step()


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        ("sgd", {"weight_decay": 0.1}, r"weight decay 0\.1.* it was 0 at first"),
        ("sgd", {"momentum": 0.5}, r"can go on with another lr, momentum, betas or weight decay, but not as"),
        ("adam", {"amsgrad": True}, r"cannot go on as Adam with amsgrad=True: it began as Adam"),
        ("momentum", {"nesterov": True}, r"can go on with another lr"),
        ("adagrad", {"eps": 0.1}, r"not with another eps"),
    ],
)
def test_what_the_server_cannot_follow_is_refused_at_the_step(
    make: str, options: dict[str, Any], message: str
) -> None:
    plain = Clicks()
    (optimizer,) = MAKES[make](plain)
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


class ClipAndDecay:
    """What users put around ``optimizer.step()``."""

    def __init__(self, model: nn.Module, optimizers: Optimizers) -> None:
        self.model = model
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], step_size=20, gamma=0.3)

    def before_step(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)

    def after_step(self) -> None:
        self.scheduler.step()


@pytest.mark.parametrize(
    ("make", "around"),
    [
        ("momentum", Cycle),
        ("decaying adam", Cycle),
        ("decaying rmsprop", Cycle),
        ("sgd", ClipAndDecay),
        ("momentum", ClipAndDecay),
    ],
)
def test_schedules_and_gradient_clipping_are_followed(make: str, around: type[ClipAndDecay | Cycle]) -> None:
    assert_same(Clicks, make, around=around)
    with_it, _ = train(Clicks, make, around=around)
    without, _ = train(Clicks, make)
    assert with_it != pytest.approx(without, abs=1e-3)


def test_gradients_accumulate_until_the_step() -> None:
    assert_same(Clicks, "adagrad", every=3)


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
    make: str,
    wrap: Callable[[nn.Module, Optimizers], nn.Module] | None = None,
    around: type[ClipAndDecay | Cycle] | None = None,
    every: int = 1,
    **options: Any,
) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    model = kind(**options)
    optimizers = MAKES[make](model)
    if wrap is not None:
        model = wrap(model, optimizers)
    extras = None if around is None else around(model, optimizers)
    losses = []
    for i, (ids, label) in enumerate(batches()):
        loss = F.binary_cross_entropy_with_logits(model(ids), label)
        loss.backward()
        if extras is not None:
            extras.before_step()
        if (i + 1) % every == 0:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        if extras is not None:
            extras.after_step()
        losses.append(loss.item())
    return losses, model
