"""Predicted rows are the rows that the real forward reads, for every model of the zoo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from autoada.prediction import IntentPredictor, Prediction
from autoada.prediction.tables import find_tables
from tests.unit.autoada.prediction.model_zoo import ZOO, Observer, Specimen

BATCHES = 50
EVERY = pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)


@EVERY
def test_predicted_rows_are_the_rows_that_are_read(specimen: Specimen) -> None:
    model = specimen.build()
    tables = find_tables(model, specimen.tables)
    predictor = IntentPredictor(model, specimen.tables, specimen.call)
    tiers: Counter[str] = Counter()
    for batch in specimen.batches(BATCHES):
        prediction = predictor.predict(batch)
        tiers[prediction.tier] += 1
        check(specimen, model, tables, batch, prediction)
        assert predictor.observe(prediction, read_for_real(specimen, prediction, model, batch))
    assert predictor.strikes == 0
    if specimen.data_dependent:
        assert tiers["program"] == 0
    else:
        assert tiers["program"] >= BATCHES - 16, predictor.refused


def check(
    specimen: Specimen,
    model: nn.Module,
    tables: dict[str, nn.Parameter],
    batch: object,
    prediction: Prediction,
) -> None:
    assert prediction.stopped is None, prediction
    assert prediction.draws or not specimen.draws
    with Observer(tables) as observer:
        specimen.call(model, batch)
    assert tables_of(prediction, "unpredictable") == set(specimen.unpredictable)
    assert tables_of(prediction, "full") == set(specimen.full) == observer.full
    rows = predicted_rows(prediction, tables)
    for name in set(tables) - set(specimen.unpredictable):
        assert rows[name] == observer.rows[name], f"{name}\n{prediction}"


def tables_of(prediction: Prediction, kind: str) -> set[str]:
    return {access.table for access in prediction.accesses if access.kind == kind}


def predicted_rows(prediction: Prediction, tables: Iterable[str]) -> dict[str, Counter[int]]:
    rows: dict[str, Counter[int]] = {name: Counter() for name in tables}
    for access in prediction.accesses:
        if access.ids is not None:
            rows[access.table].update(access.ids.reshape(-1).tolist())
    return rows


def read_for_real(
    specimen: Specimen, prediction: Prediction, model: nn.Module, batch: object
) -> list[tuple[str, Tensor | None]]:
    """The reads that a check at the real lookups would report if the prediction is right."""
    return [(a.table, torch.zeros(0) if a.kind == "unpredictable" else a.ids) for a in prediction.accesses]
