"""Several wrapped models: each gets intent for its reads, in one loop and in loops of several threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import adaps
import autoada
from tests.plain_and_wrapped import train as steps
from tests.unit.autoada.small_net import IntentLog, Net, batches_of, squared_error

ROWS = 40
STEPS = 10


def batches() -> list[tuple[Tensor, Tensor]]:
    return batches_of(ROWS, STEPS, samples=6, seed=2)


def separately(first: Any, second: Any, batch: Any) -> Any:
    return (first(batch[0]) + second(batch[0].flip(0)) - batch[1]).square().mean()


def one_only(first: Any, second: Any, batch: Any) -> Any:
    return (first(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("loss_of", [separately, one_only])
def test_models_of_one_loop_are_all_announced(
    loss_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    def train(wrap: bool) -> tuple[list[float], list[list[int]]]:
        torch.manual_seed(0)
        nets: list[Any] = [Net(ROWS), Net(ROWS)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        models = [autoada.AdaModel(*pair) for pair in zip(nets, optimizers, strict=True)] if wrap else nets
        intents = [IntentLog(model) for model in models] if wrap else []
        losses = []
        for batch in autoada.AdaDataLoader(batches(), 2) if wrap else batches():
            loss = loss_of(*models, batch)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        if wrap:
            for model in models:
                model.close()
        return losses, [intent.starts for intent in intents]

    with caplog.at_level(logging.WARNING, "autoada"):
        losses, starts = train(True)
    assert losses == pytest.approx(train(False)[0], abs=1e-5)
    assert sorted(set(starts[0])) == list(range(STEPS))
    assert sorted(set(starts[1])) == (list(range(STEPS)) if loss_of is separately else [])
    assert caplog.messages == []


class Observer:
    """Records the rows that the workers of the process announce and read, by worker and clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.announced: dict[tuple[int, int], set[int]] = {}
        self.read: dict[tuple[int, int], set[int]] = {}
        self._lock = threading.Lock()
        intent, pull = adaps.Worker.intent, adaps.Worker.pull

        def seen_intent(worker: Any, keys: Tensor, start: int, end: int | None = None) -> None:
            if end is None:
                self._note(self.announced, worker, start, keys)
            intent(worker, keys, start, end)

        def seen_pull(worker: Any, keys: Tensor, out: Tensor) -> None:
            self._note(self.read, worker, worker.current_clock, keys)
            pull(worker, keys, out)

        monkeypatch.setattr(adaps.Worker, "intent", seen_intent)
        monkeypatch.setattr(adaps.Worker, "pull", seen_pull)

    def rows(self, model: autoada.AdaModel, seen: dict[tuple[int, int], set[int]]) -> dict[int, set[int]]:
        """Rows of the model's table, by clock."""
        keys = set(model.tables["rows.weight"].rows.all_keys.tolist())
        of_model = {
            clock: rows & keys for (worker, clock), rows in seen.items() if worker == id(model.worker)
        }
        return {clock: rows for clock, rows in of_model.items() if rows}

    def _note(self, to: dict[tuple[int, int], set[int]], worker: Any, clock: int, keys: Tensor) -> None:
        with self._lock:
            to.setdefault((id(worker), clock), set()).update(keys.tolist())

    def check_exact(self, model: autoada.AdaModel, steps: int) -> None:
        read = self.rows(model, self.read)
        assert len(read) == steps
        assert read == {
            clock: rows for clock, rows in self.rows(model, self.announced).items() if clock in read
        }


def net(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net(ROWS)


def plain_losses(seed: int, given: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    plain = net(seed)
    return train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), given)


def train(model: Any, optimizer: torch.optim.Optimizer, loader: Iterable[Any]) -> list[float]:
    return steps(model, optimizer, loader, squared_error)


Trainee = tuple[autoada.AdaModel, torch.optim.Optimizer]


def wrapped(seed: int, **options: Any) -> Trainee:
    plain = net(seed)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    return autoada.AdaModel(plain, optimizer, **options), optimizer


def in_turns(first: Iterable[Any], second: Iterable[Any]) -> tuple[Iterator[Any], Iterator[Any]]:
    """Two iterators for two threads; each continues only after the other has made a step, too."""
    together = threading.Barrier(2, timeout=60)

    def turns(loader: Iterable[Any]) -> Iterator[Any]:
        for batch in loader:
            together.wait()
            yield batch

    return turns(first), turns(second)


@pytest.mark.parametrize("wraps", ["in the thread", "before"])
@pytest.mark.parametrize("named", [True, False])
def test_loops_of_two_threads_have_the_models_that_they_call(
    monkeypatch: pytest.MonkeyPatch, wraps: str, named: bool
) -> None:
    observer = Observer(monkeypatch)
    given = [batches(), batches()[::-1]]
    before = [wrapped(seed) for seed in (1, 2)] if wraps == "before" else None
    trainees: list[Trainee] = [] if before is None else before
    made = threading.Barrier(2, timeout=60)
    turns = iter(in_turns(given[0], given[1]))
    loops = list(turns)

    def work(number: int) -> list[float]:
        if before is None:
            if number == 1:
                made.wait()
            trainees.append(wrapped(number + 1))
            if number == 0:
                made.wait()
            made.wait()
        model, optimizer = trainees[number]
        loader = autoada.AdaDataLoader(loops[number], 2, model=model if named else None)
        return train(model, optimizer, loader)

    with ThreadPoolExecutor(2) as pool:
        losses = list(pool.map(work, range(2)))
    for number, (model, _) in enumerate(trainees):
        assert losses[number] == pytest.approx(plain_losses(number + 1, given[number]), abs=1e-5)
        assert model.worker.current_clock == STEPS
        observer.check_exact(model, STEPS)
        model.close()


def test_workers_of_one_node_have_a_model_and_a_loader_each(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(monkeypatch)
    with autoada.create_node(net(1), workers=2) as node:
        loops = in_turns(batches(), batches()[::-1])
        models: dict[int, autoada.AdaModel] = {}

        def work(number: int) -> None:
            model = models[number] = autoada.AdaModel(net(1), node=node, worker=number)
            for ids, label in autoada.AdaDataLoader(loops[number], 2):
                squared_error(model, (ids, label)).backward()

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, range(2)))
        for model in models.values():
            observer.check_exact(model, STEPS)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(autoada.AdaModel.close, models.values()))


def test_two_models_of_each_of_two_threads_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(monkeypatch)
    trainees = [wrapped(seed) for seed in range(4)]
    loops = in_turns(batches(), batches()[::-1])

    def work(number: int) -> None:
        own = trainees[2 * number : 2 * number + 2]
        for ids, label in autoada.AdaDataLoader(loops[number], 2):
            for model, optimizer in own:
                optimizer.zero_grad()
                squared_error(model, (ids, label)).backward()
                optimizer.step()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    for model, _ in trainees:
        observer.check_exact(model, STEPS)
        model.close()


def test_a_model_that_loops_of_two_threads_call_says_what_to_do() -> None:
    model, optimizer = wrapped(1)
    loops = in_turns(batches(), batches())
    failed: list[BaseException] = []
    done = threading.Event()

    def work(number: int) -> None:
        try:
            train(model, optimizer, autoada.AdaDataLoader(loops[number], 2, model=model))
        except RuntimeError as error:
            failed.append(error)
            done.set()

    holder = iter(autoada.AdaDataLoader(batches(), 2, model=model))
    next(holder)
    thread = threading.Thread(target=work, args=(0,))
    thread.start()
    thread.join(60)
    assert done.is_set()
    assert "loops of two threads call the same model: wrap one for each thread" in str(failed[0])
    del holder
    model.close()


def test_steps_that_a_loop_has_done_by_other_threads_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(monkeypatch)
    model, optimizer = wrapped(1)

    def prepare(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (batch[0],), {}

    with ThreadPoolExecutor(1) as pool:
        losses = [
            pool.submit(train, model, optimizer, [batch]).result()[0]
            for batch in autoada.AdaDataLoader(batches(), 2, prepare=prepare)
        ]
    assert losses == pytest.approx(plain_losses(1, batches()), abs=1e-5)
    observer.check_exact(model, STEPS)
    model.close()


def test_a_loop_that_goes_back_to_training_mode_itself_is_announced_from_the_next_batch_on() -> None:
    model = autoada.AdaModel(Net(ROWS))
    intents = IntentLog(model)
    model.eval()
    loader = autoada.AdaDataLoader(batches(), 2, model=model)
    steps = 0
    for ids, label in loader:
        model.train()
        squared_error(model, (ids, label)).backward()
        steps += 1
    assert steps == STEPS
    assert len(set(intents.starts)) >= STEPS - 2
    assert loader.epoch == 1
    model.close()
