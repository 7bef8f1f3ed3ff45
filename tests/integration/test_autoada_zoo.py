"""Every model of the zoo trains unchanged on the parameter server, with automatically announced intent."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import autoada
from autoada.prediction import Prediction
from tests.plain_and_wrapped import train
from tests.unit.autoada.prediction.model_zoo import ZOO, Specimen

STEPS = 40
LOOKAHEAD = 4


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it
@pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
def test_losses_stay_and_every_prediction_is_right(
    specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts: Counter[bool] = Counter()
    observe = autoada.IntentPredictor.observe

    def counted(
        predictor: autoada.IntentPredictor, prediction: Prediction, real: list[tuple[str, Tensor | None]]
    ) -> bool:
        exact = observe(predictor, prediction, real)
        verdicts[exact] += 1
        return exact

    monkeypatch.setattr(autoada.IntentPredictor, "observe", counted)
    plain, _ = run(specimen, wrapped=False, ahead=False)
    unannounced, stream = run(specimen, wrapped=True, ahead=False)
    assert verdicts == {}
    losses, stream_then = run(specimen, wrapped=True, ahead=True)
    assert verdicts == {True: STEPS}
    assert unannounced == pytest.approx(plain, abs=1e-5)
    assert losses == unannounced
    assert torch.equal(stream, stream_then)


def run(specimen: Specimen, *, wrapped: bool, ahead: bool) -> tuple[list[float], Tensor]:
    """Losses of all steps, and the state of the random stream after them."""
    model: Any = specimen.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader: Any = specimen.batches(STEPS)
    if wrapped:
        model = autoada.AdaModel(model, optimizer, tables=specimen.tables)
    if ahead:
        loader = autoada.AdaDataLoader(loader, LOOKAHEAD)
    torch.manual_seed(3)
    losses = train(model, optimizer, loader, specimen.call)
    stream = torch.get_rng_state()
    if wrapped:
        model.close()
    return losses, stream
