"""The models of the zoo, which use PyTorch in many ways."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.unit.autoada.prediction.model_zoo import ZOO, Specimen

from .case import Case, Expected

EXPECTED = {
    "transformer with tied head": Expected(told=("'tokens.weight' is read in full",)),
    "routing": Expected(told=("rows of 'experts.weight' depend on parameters",)),
}
DEAR = {
    "siamese with vmap": "reads under vmap, and those with scale_grad_by_freq, find distinct rows first",
}
"""Reasons for higher costs that no separately measured part of a step explains."""


def case(specimen: Specimen) -> Case:
    def loss_of(model: Any, batch: Any) -> Tensor:
        return specimen.call(model, batch)

    return Case(
        specimen.name,
        specimen.model,
        lambda count, seed: specimen.batches(count, seed),
        loss_of,
        EXPECTED.get(specimen.name, Expected()),
        tables=specimen.tables,
        dear=DEAR.get(specimen.name, ""),
    )


CASES = tuple(map(case, ZOO))
