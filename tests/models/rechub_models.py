"""Models of torch-rechub, which take dictionaries of features: ranking, matching, several tasks at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .case import Case, Expected, drawn, maker
from .clicks import BATCH, FIELDS, ROWS, cross_entropy, labels

LENGTH = 8
WIDTH = 16
NEGATIVES = 3


def feature(kind: str, *arguments: Any, **options: Any) -> Any:
    return getattr(importlib.import_module("torch_rechub.basic.features"), kind)(*arguments, **options)


def sparse(*names: str, width: int = WIDTH, rows: int = ROWS) -> list[Any]:
    return [feature("SparseFeature", name, rows, width) for name in names]


def sequence(name: str, pooling: str, shared_with: str | None = None) -> Any:
    options = {"pooling": pooling, "shared_with": shared_with, "padding_idx": 0}
    return feature("SequenceFeature", name, ROWS, WIDTH, **options)


def fields(width: int = WIDTH, rows: int = ROWS) -> list[Any]:
    return sparse(*(f"category{i}" for i in range(FIELDS)), width=width, rows=rows)


def layers() -> dict[str, Any]:
    return {"dims": [64, 32], "dropout": 0.2}


def numbers() -> list[Any]:
    return [feature("DenseFeature", f"number{i}") for i in range(3)]


def draw_clicks(generator: Generator) -> tuple[dict[str, Tensor], Tensor]:
    x = {f"category{i}": torch.randint(0, ROWS, (BATCH,), generator=generator) for i in range(FIELDS)}
    x |= {f"number{i}": torch.rand(BATCH, generator=generator) for i in range(3)}
    return x, labels(generator)


def draw_history(generator: Generator) -> tuple[dict[str, Tensor], Tensor]:
    def items(*shape: int) -> Tensor:
        return torch.randint(1, ROWS, shape, generator=generator)

    lengths = torch.randint(2, LENGTH + 1, (BATCH, 1), generator=generator)
    padded = torch.arange(LENGTH) >= lengths
    x = {
        "user": items(BATCH),
        "gender": torch.randint(1, 3, (BATCH,), generator=generator),
        "item": items(BATCH),
        "negative": items(BATCH, NEGATIVES),
        "other": items(BATCH),
        "history": items(BATCH, LENGTH).masked_fill(padded, 0),
        "positive_history": items(BATCH, LENGTH).masked_fill(padded, 0),
        "negative_history": items(BATCH, LENGTH).masked_fill(padded, 0),
    }
    return x, labels(generator)


Arguments = Callable[[], Sequence[Any]]


def case(kind: str, name: str, arguments: Arguments, loss: Any = cross_entropy, **options: Any) -> Case:
    """A model that reads clicks (ranking, multi_task) or histories (interest, matching)."""
    package = {"interest": "ranking"}.get(kind, kind)
    make = maker(lambda: importlib.import_module(f"torch_rechub.models.{package}"), name, arguments)
    batches = draw_clicks if kind in ("ranking", "multi_task") else draw_history
    return Case(options.pop("title", name), make, drawn(batches), loss, **options)


def tasks(first: int = 0) -> Any:
    """Loss of several tasks, without those before the first one."""

    def loss_of(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
        outputs = model(batch[0]).unbind(1)[first:]
        return torch.stack([F.binary_cross_entropy(output, batch[1]) for output in outputs]).sum()

    return loss_of


def with_auxiliary(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Any:
    output, auxiliary = model(batch[0])
    return F.binary_cross_entropy(output, batch[1]) + auxiliary


def listwise(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
    """The cross-entropy of several scores; the first score belongs to the correct item."""
    scores = model(batch[0])
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))


def pairwise(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
    positive, negative = model(batch[0])
    return F.softplus(negative - positive).mean()


def next_items(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
    x = batch[0]
    names = {"seq": "history", "pos": "positive_history", "neg": "negative_history"}
    positive, negative = model({name: x[source] for name, source in names.items()})
    return F.softplus(negative - positive).mean()


def scores_of_all(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[0]["item"])


def in_batch(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
    """The trainer's negatives of the batch: the two towers are called, not the model."""
    users, items = model.user_tower(batch[0]), model.item_tower(batch[0])
    return F.cross_entropy(users @ items.t(), torch.arange(len(users)))


def user() -> list[Any]:
    return [*sparse("user"), *sparse("gender", rows=3), sequence("history", "mean", "item")]


def heads() -> list[Any]:
    return [{"dims": [16]}] * 2


def items(name: str) -> list[Any]:
    return [sequence(name, "concat", "item")]


def interest() -> list[list[Any]]:
    """Features of a user, the history and the item."""
    return [sparse("user"), items("history"), sparse("item")]


def towers(*others: str) -> list[Any]:
    return [user(), sparse("item"), *map(sparse, others), layers(), layers()]


def next_item_features() -> list[Any]:
    return [sequence("seq", "concat"), *(sequence(name, "concat", "seq") for name in ("pos", "neg"))]


READ_IN_FULL = Expected(told=("'item_emb.weight' is read in full",))
TOWER: dict[str, Any] = {"dims": [32, WIDTH]}
TASKS = ["classification"] * 2

CASES = (
    case("ranking", "WideDeep", lambda: ([*fields(), *numbers()], fields(), layers())),
    case("ranking", "DeepFM", lambda: ([*numbers(), *fields()], fields(), layers())),
    case("ranking", "DCN", lambda: ([*fields(), *numbers()], 3, layers())),
    case("ranking", "DCNv2", lambda: ([*fields(), *numbers()], 3, layers())),
    case("ranking", "EDCN", lambda: (fields(), 2, layers())),
    case("ranking", "AFM", lambda: (fields(), WIDTH)),
    case("ranking", "AutoInt", lambda: (fields(), numbers(), 3, 2, 0.0, layers())),
    case("ranking", "FiBiNet", lambda: (fields(), layers()), sensitive=True),
    case(
        "ranking",
        "DeepFFM",
        lambda: (fields(width=1), fields(width=4, rows=FIELDS * ROWS), 4, layers()),
        sensitive=True,
    ),
    case("interest", "DIN", lambda: (*interest(), layers(), {"dims": [32]})),
    case("interest", "BST", lambda: (*interest(), layers(), 8, 0.2, 1, LENGTH + 1)),
    case(
        "interest",
        "DIEN",
        lambda: (sparse("user"), items("history"), items("negative_history"), sparse("item"), layers()),
        with_auxiliary,
    ),
    case("matching", "DSSM", towers),
    case(
        "matching",
        "DSSM",
        towers,
        in_batch,
        title="DSSM with negatives of the batch",
        expected=Expected(exact_from=2),  # It is known from then on that there are two calls.
    ),
    case("matching", "FaceBookDSSM", lambda: towers("other"), pairwise, sensitive=True),
    case("matching", "MIND", lambda: (*interest(), items("negative"), LENGTH), listwise),
    case("matching", "ComirecSA", lambda: (*interest(), items("negative")), listwise),
    case(
        "matching",
        "YoutubeDNN",
        lambda: (user(), sparse("item"), items("negative"), dict(TOWER), 0.02),
        listwise,
        sensitive=True,
    ),
    case(
        "matching",
        "GRU4Rec",
        lambda: (*interest(), items("negative"), dict(TOWER)),
        listwise,
        sensitive=True,
    ),
    case("matching", "SASRec", lambda: (next_item_features(), LENGTH), next_items),
    case(
        "matching",
        "NARM",
        lambda: (sequence("history", "concat"), 32, 0.1, 0.1),
        scores_of_all,
        expected=READ_IN_FULL,
    ),
    case(
        "matching",
        "STAMP",
        lambda: (sequence("history", "concat"), 0.05, 0.02),
        scores_of_all,
        expected=READ_IN_FULL,
    ),
    case("multi_task", "SharedBottom", lambda: (fields(), TASKS, layers(), heads()), tasks()),
    case("multi_task", "MMOE", lambda: (fields(), TASKS, 3, layers(), heads()), tasks()),
    case("multi_task", "PLE", lambda: (fields(), TASKS, 1, 2, 1, layers(), heads()), tasks()),
    case("multi_task", "AITM", lambda: (fields(), 2, layers(), heads()), tasks()),
    case(
        "multi_task",
        "ESMM",
        lambda: (
            *(sparse("category0", "category1"), sparse("category2", "category3")),
            *({"dims": [32]}, {"dims": [32]}),
        ),
        tasks(first=1),
    ),
)
