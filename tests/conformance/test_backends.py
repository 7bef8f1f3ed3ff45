"""Every backend trains what plain PyTorch trains, signals the intent that it claims, and ends cleanly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from adabench.backends.interface import Backend, Options, ServerOptions, Unavailable
from adabench.harness.plugins.registry import load_backend, names
from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from adabench.usecases.gcn.task import GcnParams, GcnUseCase
from tests.worker_contexts import PerProcess, worker_context

BACKENDS = sorted(names("backend"))
DISTRIBUTED = [name for name in BACKENDS if load_backend(name).distributed]
ON_SERVER = [name for name in DISTRIBUTED if issubclass(load_backend(name).Options, ServerOptions)]
STEPS = 100


@pytest.fixture
def shared() -> Iterator[PerProcess]:
    shared = PerProcess()
    yield shared
    shared.close()


def small_ctr(optimizer: str) -> CtrUseCase:
    params = {"rows": 20_000, "batch": 128, "dim": 8, "lr": 0.01, "optimizer": optimizer}
    return CtrUseCase(msgspec.convert(params, CtrParams), None, seed=1)


def available(name: str) -> Backend:
    try:
        return load_backend(name)()
    except Unavailable as error:
        pytest.skip(str(error))


def train(
    name: str, optimizer: str, shared: PerProcess, **options: Any
) -> tuple[list[float], dict[str, float]]:
    """Losses of the first steps, and the node's counters."""
    usecase = small_ctr(optimizer)
    backend = available(name)
    session = backend.open(usecase, worker_context(shared), msgspec.convert(options, backend.Options))
    loaders = usecase.loaders(0, 1)
    losses: list[float] = []
    while len(losses) < STEPS:
        for batch in session.batches(loaders.train):
            loss = usecase.loss(session.model, batch)
            session.step(loss)
            losses.append(loss.item())
            if len(losses) == STEPS:
                break
    session.synchronize()
    metrics = usecase.evaluate(session.model, loaders.valid)
    assert session.model.training
    counters = session.counters()
    session.close()
    return [*losses, metrics["logloss"]], counters


@pytest.fixture(scope="module", params=["sgd", "adagrad"])
def plain(request: pytest.FixtureRequest) -> tuple[str, list[float]]:
    """An optimizer, and the losses of plain PyTorch with it."""
    return request.param, train("single", request.param, PerProcess())[0]


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_losses_are_those_of_plain_pytorch(
    name: str, plain: tuple[str, list[float]], shared: PerProcess
) -> None:
    optimizer, expected = plain
    losses, _ = train(name, optimizer, shared)
    assert torch.tensor(losses) == pytest.approx(torch.tensor(expected), abs=1e-5)
    assert losses[0] != losses[-2]


@pytest.mark.parametrize("name", ON_SERVER)
def test_intent_is_signalled_ahead_of_use(name: str, shared: PerProcess) -> None:
    _, counters = train(name, "adagrad", shared, lookahead=5)
    assert counters["intents"] > 0


def test_a_backend_without_server_has_no_counters() -> None:
    assert train("single", "sgd", PerProcess())[1] == {}


def test_rows_that_a_use_case_places_are_signalled_before_training(shared: PerProcess) -> None:
    usecase = GcnUseCase(GcnParams(), None, seed=1)
    session = load_backend("prefetch")().open(usecase, worker_context(shared), ServerOptions())
    placed = sum(len(rows) for rows in usecase.home_rows(0, 1).values())
    assert session.counters()["intents"] >= placed > 0
    session.close()


def test_ddp_has_gloo_run_one_operation_at_a_time(shared: PerProcess) -> None:
    """Two threads that sum sparse tensors damage the heap in PyTorch 2.13, which seldom shows."""
    before = _gloo_threads()
    session = load_backend("ddp")().open(small_ctr("sgd"), worker_context(shared), Options())
    assert _gloo_threads() - before == 1
    session.close()


def _gloo_threads() -> int:
    names = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
    return names.count("pt_gloo_runloop")
