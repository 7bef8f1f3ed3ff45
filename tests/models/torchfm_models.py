"""Models of torchfm: factorization machines and their kin, one table for all fields."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from .case import Case, drawn
from .clicks import FIELDS, LENGTH, ROWS, categories, cross_entropy

SIZES = [ROWS] * FIELDS
LAYERS = (64, 32)


def maker(file: str, name: str, *arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        kind = getattr(importlib.import_module(f"torchfm.model.{file}"), name)
        model: nn.Module = kind(SIZES, *arguments, **options)
        return model

    return make


def case(file: str, name: str, *arguments: Any, **options: Any) -> Case:
    return Case(name, maker(file, name, *arguments), drawn(categories), cross_entropy, **options)


CASES = (
    case("lr", "LogisticRegressionModel"),
    case("fm", "FactorizationMachineModel", LENGTH),
    case("ffm", "FieldAwareFactorizationMachineModel", 4),
    case("fnn", "FactorizationSupportedNeuralNetworkModel", LENGTH, LAYERS, 0.2),
    case("wd", "WideAndDeepModel", LENGTH, LAYERS, 0.2),
    case("pnn", "ProductNeuralNetworkModel", LENGTH, LAYERS, 0.2),
    case("dcn", "DeepCrossNetworkModel", LENGTH, 3, LAYERS, 0.2),
    case("dfm", "DeepFactorizationMachineModel", LENGTH, LAYERS, 0.2),
    case("xdfm", "ExtremeDeepFactorizationMachineModel", LENGTH, LAYERS, 0.2, (16, 16)),
    case("nfm", "NeuralFactorizationMachineModel", LENGTH, LAYERS, (0.2, 0.2)),
    case("fnfm", "FieldAwareNeuralFactorizationMachineModel", 4, LAYERS, (0.2, 0.2)),
    case("afm", "AttentionalFactorizationMachineModel", LENGTH, 16, (0.2, 0.2)),
    case("afi", "AutomaticFeatureInteractionModel", LENGTH, 64, 2, 3, LAYERS, (0.2, 0.2)),
    case("afn", "AdaptiveFactorizationNetwork", LENGTH, 150, LAYERS, (0.2, 0.2, 0.2)),
    Case(
        "NeuralCollaborativeFiltering",
        maker("ncf", "NeuralCollaborativeFiltering", [0], [1], LENGTH, LAYERS, 0.2),
        drawn(categories),
        cross_entropy,
    ),
)
