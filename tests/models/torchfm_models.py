"""Models of torchfm: factorization machines and their kin, one table for all fields."""

from __future__ import annotations

import importlib
from typing import Any

from .case import Case, drawn, maker
from .clicks import FIELDS, LENGTH, ROWS, categories, cross_entropy

SIZES = [ROWS] * FIELDS
LAYERS = (64, 32)


def case(file: str, name: str, *arguments: Any) -> Case:
    make = maker(lambda: importlib.import_module(f"torchfm.model.{file}"), name, lambda: (SIZES, *arguments))
    return Case(name, make, drawn(categories), cross_entropy)


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
    case("ncf", "NeuralCollaborativeFiltering", [0], [1], LENGTH, LAYERS, 0.2),
)
