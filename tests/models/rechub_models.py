"""Models of torch-rechub, which take dictionaries of features: ranking, matching, several tasks at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .case import Case, Expected, drawn
from .clicks import BATCH, FIELDS, ROWS, cross_entropy, labels

LENGTH = 8
WIDTH = 16
NEGATIVES = 3
LAYERS = {"dims": [64, 32], "dropout": 0.2}


def feature(kind: str, *arguments: Any, **options: Any) -> Any:
    return getattr(importlib.import_module("torch_rechub.basic.features"), kind)(*arguments, **options)


def sparse(*names: str, width: int = WIDTH, rows: int = ROWS) -> list[Any]:
    return [feature("SparseFeature", name, rows, width) for name in names]


def sequence(name: str, pooling: str, shared_with: str | None = None) -> Any:
    options = {"pooling": pooling, "shared_with": shared_with, "padding_idx": 0}
    return feature("SequenceFeature", name, ROWS, WIDTH, **options)


def fields(width: int = WIDTH, rows: int = ROWS) -> list[Any]:
    return sparse(*(f"category{i}" for i in range(FIELDS)), width=width, rows=rows)


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


def model_of(module: str, name: str, make: Callable[[Any], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return make(getattr(importlib.import_module(f"torch_rechub.models.{module}"), name))

    return build


def ranking(file: str, name: str, make: Callable[[Any], nn.Module], **options: Any) -> Case:
    return Case(name, model_of(f"ranking.{file}", name, make), drawn(draw_clicks), cross_entropy, **options)


def interest(
    file: str, name: str, make: Callable[[Any], nn.Module], loss: Any = cross_entropy, **options: Any
) -> Case:
    return Case(name, model_of(f"ranking.{file}", name, make), drawn(draw_history), loss, **options)


def matching(file: str, name: str, make: Callable[[Any], nn.Module], loss: Any, **options: Any) -> Case:
    return Case(name, model_of(f"matching.{file}", name, make), drawn(draw_history), loss, **options)


def tasks(file: str, name: str, make: Callable[[Any], nn.Module], first: int = 0) -> Case:
    def loss_of(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
        outputs = model(batch[0])
        losses = [F.binary_cross_entropy(output, batch[1]) for output in outputs.unbind(1)[first:]]
        return torch.stack(losses).sum()

    return Case(name, model_of(f"multi_task.{file}", name, make), drawn(draw_clicks), loss_of)


def with_auxiliary(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
    output, auxiliary = model(batch[0])
    loss: Tensor = F.binary_cross_entropy(output, batch[1]) + auxiliary
    return loss


def listwise(model: Any, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
    """The first of several scores is that of the item."""
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


def towers(**options: Any) -> dict[str, Any]:
    return {"user_params": dict(LAYERS), **options}


def user() -> list[Any]:
    return [*sparse("user"), *sparse("gender", rows=3), sequence("history", "mean", "item")]


def negatives() -> list[Any]:
    return [sequence("negative", "concat", "item")]


def histories(*names: str, pooling: str = "concat") -> list[Any]:
    return [sequence(name, pooling, "item") for name in names]


def two_towers(kind: Any) -> nn.Module:
    model: nn.Module = kind(user(), sparse("item"), **towers(item_params=dict(LAYERS)))
    return model


READ_IN_FULL = Expected(told=("'item_emb.weight' is read in full",))

CASES = (
    ranking("widedeep", "WideDeep", lambda kind: kind([*fields(), *numbers()], fields(), dict(LAYERS))),
    ranking("deepfm", "DeepFM", lambda kind: kind([*numbers(), *fields()], fields(), dict(LAYERS))),
    ranking("dcn", "DCN", lambda kind: kind([*fields(), *numbers()], 3, dict(LAYERS))),
    ranking("dcn_v2", "DCNv2", lambda kind: kind([*fields(), *numbers()], 3, dict(LAYERS))),
    ranking("edcn", "EDCN", lambda kind: kind(fields(), 2, dict(LAYERS))),
    ranking("afm", "AFM", lambda kind: kind(fields(), WIDTH)),
    ranking("autoint", "AutoInt", lambda kind: kind(fields(), numbers(), mlp_params=dict(LAYERS))),
    ranking("fibinet", "FiBiNet", lambda kind: kind(fields(), dict(LAYERS)), sensitive=True),
    ranking(
        "deepffm",
        "DeepFFM",
        lambda kind: kind(fields(width=1), fields(width=4, rows=FIELDS * ROWS), 4, dict(LAYERS)),
        sensitive=True,
    ),
    interest(
        "din",
        "DIN",
        lambda kind: kind(sparse("user"), histories("history"), sparse("item"), dict(LAYERS), {"dims": [32]}),
    ),
    interest(
        "bst",
        "BST",
        lambda kind: kind(
            sparse("user"), histories("history"), sparse("item"), dict(LAYERS), max_seq_len=LENGTH + 1
        ),
    ),
    interest(
        "dien",
        "DIEN",
        lambda kind: kind(
            sparse("user"), histories("history"), histories("negative_history"), sparse("item"), dict(LAYERS)
        ),
        with_auxiliary,
    ),
    matching("dssm", "DSSM", two_towers, cross_entropy),
    Case(
        "DSSM with negatives of the batch",
        model_of("matching.dssm", "DSSM", two_towers),
        drawn(draw_history),
        in_batch,
        Expected(exact_from=2),  # from then on it is known that there are two calls
    ),
    matching(
        "dssm_facebook",
        "FaceBookDSSM",
        lambda kind: kind(user(), sparse("item"), sparse("other"), **towers(item_params=dict(LAYERS))),
        pairwise,
    ),
    matching(
        "mind",
        "MIND",
        lambda kind: kind(sparse("user"), histories("history"), sparse("item"), negatives(), LENGTH),
        listwise,
    ),
    matching(
        "comirec",
        "ComirecSA",
        lambda kind: kind(sparse("user"), histories("history"), sparse("item"), negatives()),
        listwise,
    ),
    matching(
        "youtube_dnn",
        "YoutubeDNN",
        lambda kind: kind(user(), sparse("item"), negatives(), {"dims": [32, WIDTH]}, temperature=0.02),
        listwise,
        sensitive=True,
    ),
    matching(
        "gru4rec",
        "GRU4Rec",
        lambda kind: kind(
            sparse("user"), histories("history"), sparse("item"), negatives(), {"dims": [32, WIDTH]}
        ),
        listwise,
        sensitive=True,
    ),
    matching(
        "sasrec",
        "SASRec",
        lambda kind: kind(
            [sequence("seq", "concat"), *(sequence(n, "concat", "seq") for n in ("pos", "neg"))], LENGTH
        ),
        next_items,
    ),
    matching(
        "narm",
        "NARM",
        lambda kind: kind(sequence("history", "concat"), 32, 0.1, 0.1),
        scores_of_all,
        expected=READ_IN_FULL,
    ),
    matching(
        "stamp",
        "STAMP",
        lambda kind: kind(sequence("history", "concat"), 0.05, 0.02),
        scores_of_all,
        expected=READ_IN_FULL,
    ),
    tasks(
        "shared_bottom",
        "SharedBottom",
        lambda kind: kind(fields(), ["classification"] * 2, dict(LAYERS), [{"dims": [16]}] * 2),
    ),
    tasks(
        "mmoe",
        "MMOE",
        lambda kind: kind(fields(), ["classification"] * 2, 3, dict(LAYERS), [{"dims": [16]}] * 2),
    ),
    tasks(
        "ple",
        "PLE",
        lambda kind: kind(fields(), ["classification"] * 2, 1, 2, 1, dict(LAYERS), [{"dims": [16]}] * 2),
    ),
    tasks("aitm", "AITM", lambda kind: kind(fields(), 2, dict(LAYERS), [{"dims": [16]}] * 2)),
    tasks(
        "esmm",
        "ESMM",
        lambda kind: kind(
            sparse("category0", "category1"), sparse("category2", "category3"), {"dims": [32]}, {"dims": [32]}
        ),
        first=1,
    ),
)
