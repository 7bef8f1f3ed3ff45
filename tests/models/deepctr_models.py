"""Models of deepctr-torch with the loss of its ``fit``: summed entropy, and what regularizes."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .case import Case, Expected, drawn, maker
from .clicks import BATCH, FIELDS, ROWS, labels

LENGTH = 10
"""Length of a history."""
NUMBERS = 4
UNREGULARIZED: dict[str, Any] = {"l2_reg_linear": 0, "l2_reg_embedding": 0}
NO_LINEAR: dict[str, Any] = {"l2_reg_embedding": 0}


def library(module: str) -> Any:
    # as soon as it is imported, the package asks PyPI for its newest version
    silent: Any = ModuleType("deepctr_torch.utils")
    silent.check_version = lambda version: None
    sys.modules.setdefault("deepctr_torch.utils", silent)
    return importlib.import_module(f"deepctr_torch.{module}")


def models() -> Any:
    return library("models")


def columns(numbers: bool = True) -> list[Any]:
    inputs = library("inputs")
    sparse = [inputs.SparseFeat(f"category{i}", ROWS, embedding_dim=8) for i in range(FIELDS)]
    return [*sparse, *(inputs.DenseFeat(f"number{i}", 1) for i in range(NUMBERS if numbers else 0))]


def clicks(generator: Generator) -> tuple[Tensor, Tensor]:
    """One float array with a column for each feature, as ``fit`` makes it."""
    ids = torch.randint(0, ROWS, (BATCH, FIELDS), generator=generator).float()
    return torch.cat([ids, torch.rand(BATCH, NUMBERS, generator=generator)], 1), labels(generator)


def loss_of(model: Any, batch: tuple[Tensor, Tensor]) -> Any:
    x, y = batch
    loss = F.binary_cross_entropy(model(x).squeeze(-1), y, reduction="sum")
    return (loss + model.get_regularization_loss() + model.aux_loss).squeeze()


def case(
    name: str,
    *,
    lists: int = 2,
    numbers: bool = True,
    expected: Expected | None = None,
    sensitive: bool = False,
    **options: Any,
) -> Case:
    """A model whose constructor takes `lists` lists of columns."""
    make = maker(models, name, lambda: [columns(numbers)] * lists, **options)
    return Case(name, make, drawn(clicks), loss_of, expected or Expected(), rate=0.01, sensitive=sensitive)


def history_columns(*negative: str) -> list[Any]:
    inputs = library("inputs")

    def history(name: str) -> Any:
        item = inputs.SparseFeat(name, ROWS, 8, embedding_name="item")
        return inputs.VarLenSparseFeat(item, maxlen=LENGTH, length_name="length")

    return [
        inputs.SparseFeat("user", ROWS, 8),
        inputs.SparseFeat("item", ROWS, 8),
        inputs.DenseFeat("price", 1),
        *map(history, ("hist_item", *negative)),
    ]


def histories(lists: int) -> Any:
    def draw(generator: Generator) -> tuple[Tensor, Tensor]:
        lengths = torch.randint(1, LENGTH + 1, (BATCH, 1), generator=generator)
        items = torch.randint(1, ROWS, (BATCH, lists * LENGTH), generator=generator)
        items[(torch.arange(LENGTH) >= lengths).repeat(1, lists)] = 0
        parts = [
            torch.randint(1, ROWS, (BATCH, 2), generator=generator),
            torch.rand(BATCH, 1, generator=generator),
            items[:, :LENGTH],
            lengths,
            items[:, LENGTH:],
        ]
        return torch.cat([part.float() for part in parts], 1), labels(generator)

    return draw


def interests(name: str, lists: int, *negative: str, **options: Any) -> Case:
    make = maker(models, name, lambda: (history_columns(*negative), ["item"]), **NO_LINEAR, **options)
    return Case(name, make, drawn(histories(lists)), loss_of, rate=0.01)


def both_tasks(model: Any, batch: tuple[Tensor, Tensor]) -> Any:
    x, y = batch
    loss = sum(F.binary_cross_entropy(output, y, reduction="sum") for output in model(x).unbind(1))
    return (loss + model.get_regularization_loss() + model.aux_loss).squeeze()


def tasks(name: str) -> Case:
    make = maker(models, name, lambda: [columns()], **UNREGULARIZED)
    return Case(name, make, drawn(clicks), both_tasks, rate=0.01)


LINEAR_REGULARIZED = Expected(exact_from=2, told=("is read in full",) * FIELDS)
"""That the loss of a batch takes two calls, the second for the regularization, is known from two batches."""
REGULARIZED = Expected(exact_from=2, told=("is read in full",) * 2 * FIELDS)

CASES = (
    case("WDL", expected=REGULARIZED, l2_reg_linear=0.01, l2_reg_embedding=0.01, l2_reg_dnn=0.01),
    case("DeepFM", **UNREGULARIZED),
    case("xDeepFM", cin_layer_size=(32, 16), **UNREGULARIZED),
    case("NFM", **UNREGULARIZED),
    case("AFM", numbers=False, **UNREGULARIZED),
    case("DCN", expected=LINEAR_REGULARIZED, **UNREGULARIZED),
    case("DCNMix", expected=LINEAR_REGULARIZED, **UNREGULARIZED),
    case("AFN", numbers=False, sensitive=True, **UNREGULARIZED),
    case("AutoInt", **NO_LINEAR),
    case("FiBiNET", **UNREGULARIZED),
    case("IFM", **UNREGULARIZED),
    case("DIFM", **UNREGULARIZED),
    case("ONN", **UNREGULARIZED),
    case("PNN", lists=1, **NO_LINEAR),
    case("CCPM", numbers=False, **UNREGULARIZED),
    case("MLR", lists=1, expected=REGULARIZED, l2_reg_linear=0),
    interests("DIN", 1),
    interests("DIEN", 2, "neg_hist_item", gru_type="AUGRU", use_negsampling=True),
    tasks("ESMM"),
    tasks("MMOE"),
    tasks("PLE"),
    tasks("SharedBottom"),
)
