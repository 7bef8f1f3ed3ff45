"""Recommenders of RecBole, trained by ``calculate_loss`` on what its own loaders give."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, nn

from .case import Case, Expected

USERS, ITEMS, ACTIONS = 200, 300, 4000
BATCH = 128
NEGATIVES: dict[str, Any] = {"train_neg_sample_args": {"distribution": "uniform", "sample_num": 1}}
FROM_ALL: dict[str, Any] = {"train_neg_sample_args": None}
CLICKED: dict[str, Any] = {"threshold": {"rating": 3}, **FROM_ALL}
SMALL: dict[str, Any] = {"embedding_size": 32, "hidden_size": 32, "inner_size": 64, "n_layers": 1}
RANKED: dict[str, Any] = {"loss_type": "BPR", **NEGATIVES, **SMALL}


def names_of_numpy_1() -> None:
    """RecBole uses names that NumPy 2 has no more."""
    for name, kind in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
        if name not in vars(np):
            setattr(np, name, kind)


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder with a file of ratings in RecBole's format."""
    made = tempfile.TemporaryDirectory()
    generator = Generator().manual_seed(5)
    users, items = (torch.randint(0, n, (ACTIONS,), generator=generator).tolist() for n in (USERS, ITEMS))
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    lines += [f"{u}\t{i}\t{1 + (u + i) % 5}\t{t}" for t, (u, i) in enumerate(zip(users, items, strict=True))]
    path = Path(made.name) / "ratings" / "ratings.inter"
    path.parent.mkdir()
    path.write_text("\n".join(lines))
    return made


def prepared(name: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The configuration and the loader of training data."""
    names_of_numpy_1()
    given = {
        "data_path": folder().name,
        "train_batch_size": BATCH,
        "MAX_ITEM_LIST_LENGTH": 10,
        "use_gpu": False,
        "seed": 7,
        "show_progress": False,
        "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]},
        **options,
    }
    config = importlib.import_module("recbole.config").Config(name, "ratings", config_dict=given)
    data = importlib.import_module("recbole.data")
    return config, data.data_preparation(config, data.create_dataset(config))[0]


def loss_of(model: Any, interaction: Any) -> Any:
    return model.calculate_loss(interaction)


def case(name: str, expected: Expected | None = None, **options: Any) -> Case:
    @functools.cache
    def once() -> tuple[Any, Any]:
        return prepared(name, options)

    def make() -> nn.Module:
        config, loader = once()
        kind = importlib.import_module("recbole.utils").get_model(name)
        model: nn.Module = kind(config, loader.dataset)
        return model

    @functools.cache  # the loader draws on where it was
    def drawn(count: int, seed: int) -> list[Any]:
        importlib.import_module("recbole.utils").init_seed(seed, True)
        loader = once()[1]
        loader.generator.manual_seed(seed)
        passes = itertools.chain.from_iterable(itertools.repeat(loader))
        return list(itertools.islice(passes, count))

    def batches(count: int, seed: int) -> list[Any]:
        return copy.deepcopy(drawn(count, seed))

    return Case(name, make, batches, loss_of, expected or Expected())


CASES = (
    case("BPR"),
    case("NeuMF"),
    case("SimpleX", **NEGATIVES),
    case("GRU4Rec", **RANKED),
    case("NARM", Expected(told=("is read in full",)), **FROM_ALL, **SMALL),
    case("SASRec", **RANKED),
    case("BERT4Rec", **FROM_ALL, **SMALL),
    case("SRGNN", **RANKED),
    case("Caser", Expected(told=("is read in full",) * 2), **RANKED),
    case("FPMC", **NEGATIVES),
    case("FM", **CLICKED),
    case("DeepFM", **CLICKED),
    case("DCNV2", **CLICKED),
)
