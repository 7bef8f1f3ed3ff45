"""The cost of prediction as a share of the training step of the same batch on the same thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from autoada import IntentPredictor
from tests.unit.autoada.prediction.model_zoo import ZOO, Specimen

if TYPE_CHECKING:
    from tests.perf.conftest import Ratio
    from tests.perf.goals import Limit

WARM = 20
STEPS = 60
# The goal is a tenth of a step.
LIMIT = 0.15
PREDICTABLE = [specimen for specimen in ZOO if not specimen.data_dependent]


def share(
    model: nn.Module, batches: Sequence[Any], predictor: IntentPredictor, loss: Callable[..., Any]
) -> float:
    """The median CPU time of a prediction divided by that of a training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    predictions, steps = [], []
    for batch in batches:
        start = time.thread_time()
        predictor.predict(batch)
        between = time.thread_time()
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        predictions.append(between - start)
        steps.append(time.thread_time() - between)
    return statistics.median(predictions[WARM:]) / statistics.median(steps[WARM:])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it
@pytest.mark.parametrize("specimen", PREDICTABLE, ids=lambda specimen: specimen.name)
def test_prediction_costs_a_small_share_of_a_step(specimen: Specimen, limit: Limit) -> None:
    model = specimen.build()
    predictor = IntentPredictor(model, specimen.tables, specimen.call)
    found = share(model, specimen.batches(STEPS), predictor, specimen.call)
    limit(f"prediction for {specimen.name}, in steps", found, LIMIT)


def predicting_and_training(
    model: nn.Module, batches: Sequence[Any], predictor: IntentPredictor, loss: Callable[..., Any]
) -> tuple[Callable[[], None], Callable[[], None]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def predict() -> None:
        for batch in batches:
            predictor.predict(batch)

    def train() -> None:
        for batch in batches:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    return predict, train


@pytest.mark.parametrize("name", ["DLRM", "two towers"])
def test_speed_of_predictions_in_steps(ratio: Ratio, name: str) -> None:
    specimen = next(one for one in ZOO if one.name == name)
    model = specimen.build()
    predictor = IntentPredictor(model, specimen.tables, specimen.call)
    batches = specimen.batches(STEPS)
    ratio(*predicting_and_training(model, batches, predictor, specimen.call))


def test_prediction_costs_at_most_three_hundredths_of_a_step_of_ctr(ratio: Ratio, limit: Limit) -> None:
    usecase = CtrUseCase(CtrParams(rows=20_000, batch=128), None, seed=1)
    model = usecase.model()
    batches = list(usecase.loaders(0, 1).train)[:STEPS]
    predictor = IntentPredictor(model, call=usecase.loss)
    speed = ratio(*predicting_and_training(model, batches, predictor, usecase.loss))
    limit("prediction for CTR, in steps", 1 / speed, 0.03)
