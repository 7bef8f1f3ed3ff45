"""A training step of click-through rate prediction, end to end: automatic intent against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from adabench.backends.interface import TrainingSession
from adabench.harness.plugins.registry import load_backend
from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from tests.worker_contexts import PerProcess, worker_context

if TYPE_CHECKING:
    from tests.perf.conftest import Ratio
    from tests.perf.goals import Goal

STEPS = 40


def test_ctr_with_automatic_intent_in_one_process(ratio: Ratio, goal: Goal) -> None:
    """Steps through the parameter server, prediction, signalling and background thread included."""
    speed = train_both(CtrParams(rows=40_000), ratio)
    goal("CTR step, batches of 128", 1 / speed, at_most=1, unit="× plain PyTorch's CPU seconds")


def test_ctr_with_large_batches(ratio: Ratio, goal: Goal) -> None:
    speed = train_both(CtrParams(rows=80_000, batch=1024), ratio)
    goal("CTR step, batches of 1,024", 1 / speed, at_most=1, unit="× plain PyTorch's CPU seconds")


def train_both(params: CtrParams, ratio: Ratio) -> float:
    """How many times as fast automatic intent trains as plain PyTorch."""
    usecase = CtrUseCase(params, None, seed=1)
    batches = list(usecase.loaders(0, 1).train)[:STEPS]
    shared = PerProcess()

    def trained(name: str) -> tuple[TrainingSession, Callable[[], None]]:
        backend = load_backend(name)()
        session = backend.open(usecase, worker_context(shared), backend.Options())

        def train() -> None:
            for batch in session.batches(batches):
                session.step(usecase.loss(session.model, batch))

        return session, train

    ours, train_ours = trained("autoada-automatic")
    plain, train_plainly = trained("single")
    speed = ratio(train_ours, train_plainly)
    ours.synchronize()
    # Both have trained on the same batches as often.
    reached = [usecase.evaluate(session.model, batches)["logloss"] for session in (ours, plain)]
    for session in (ours, plain):
        session.close()
    shared.close()
    assert abs(reached[0] - reached[1]) < 0.01
    return speed
