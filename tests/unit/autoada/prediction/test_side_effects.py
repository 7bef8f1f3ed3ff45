"""Prediction leaves no trace: losses are bit-identical with and without it, and nothing else changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autoada.prediction import IntentPredictor
from autoada.prediction.batch_structure import leaves
from tests.unit.autoada.prediction.model_zoo import ZOO, Specimen

STEPS = 40
AHEAD = 5
EVERY = pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)


@EVERY
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it
def test_losses_are_bit_identical_with_and_without_prediction(specimen: Specimen) -> None:
    batches = specimen.batches(STEPS)

    model = specimen.build()
    torch.manual_seed(7)
    plain = train(specimen, model, batches, (contextlib.nullcontext() for _ in batches))

    model = specimen.build()
    torch.manual_seed(7)
    with_prediction = train(specimen, model, batches, replays(specimen, model, batches))

    assert all(torch.equal(a, b) for a, b in zip(plain, with_prediction, strict=True))


@EVERY
def test_prediction_changes_neither_model_nor_batch_nor_random_generators(specimen: Specimen) -> None:
    model = specimen.build()
    batches = specimen.batches(12)
    predictor = IntentPredictor(model, specimen.tables, specimen.call)
    before = snapshot(model, batches)
    for batch in batches:
        predictor.predict(batch)
        predictor.explain(batch)
    for (name, old), (_, new) in zip(before, snapshot(model, batches), strict=True):
        assert torch.equal(old, new) if isinstance(old, Tensor) else old == new, name


def train(specimen: Specimen, model: nn.Module, batches: list[Any], contexts: Iterator[Any]) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch, context in zip(batches, contexts, strict=True):
        with context:
            loss = specimen.call(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def replays(specimen: Specimen, model: nn.Module, batches: list[Any]) -> Iterator[Any]:
    """Predicts some batches ahead of the one that is about to be trained."""
    predictor = IntentPredictor(model, specimen.tables, specimen.call)
    ahead = [predictor.predict(batch) for batch in batches[:AHEAD]]
    for following in [*batches[AHEAD:], *([None] * AHEAD)]:
        prediction = ahead.pop(0)
        yield predictor.around(prediction)
        if following is not None:
            ahead.append(predictor.predict(following))


def snapshot(model: nn.Module, batches: list[Any]) -> list[tuple[str, Any]]:
    """Values, versions and Python attributes of everything that prediction might change."""
    found: list[tuple[str, Any]] = [("random state", torch.get_rng_state())]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found += [(name, tensor.detach().clone()), (f"version of {name}", tensor._version)]
    for name, module in model.named_modules():
        found.append((f"attributes of {name}", sorted(module.__dict__)))
    for batch in batches:
        for path, leaf in leaves(batch):
            found.append((f"batch {path}", leaf.clone() if isinstance(leaf, Tensor) else leaf))
            if isinstance(leaf, Tensor):
                found.append((f"version of batch {path}", leaf._version))
    return found
