"""The time budget of steps: every moment belongs to one part."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from adabench.harness.run import flame_graph
from adabench.harness.run.step_budget import LOOP, StepBudget, StepClock, ThreadTimes


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr("adabench.harness.run.step_budget.time", fake)
    return fake


def burn(seconds: float) -> None:
    """Use `seconds` of CPU time on this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_what_lies_inside_a_part_does_not_count_for_it(clock_time: FakeTime) -> None:
    clock = StepClock()
    clock.start()
    clock_time.now += 1
    clock.enter("update")
    clock_time.now += 2
    clock.enter("push")
    clock_time.now += 4
    clock.leave()
    clock_time.now += 8
    clock.leave()
    clock_time.now += 16
    clock.stop()
    assert clock.seconds == {LOOP: 17.0, "update": 10.0, "push": 4.0}


def test_time_between_stop_and_start_is_nobodys(clock_time: FakeTime) -> None:
    clock = StepClock()
    for _ in range(2):
        clock.start()
        clock_time.now += 1
        clock.stop()
        clock_time.now += 50
    assert clock.seconds == {LOOP: 2.0}


def test_the_parts_of_real_steps_add_up_to_the_time_that_they_took() -> None:
    budget = StepBudget()
    pull = budget.timed("pull", lambda: burn(0.002))

    def forward() -> None:
        burn(0.003)
        pull()

    loss = budget.timed("forward", forward)
    began = time.perf_counter()
    budget.start()
    for _ in budget.batches([1, 2, 3]):
        loss()
        burn(0.001)
    budget.stop()
    wall = time.perf_counter() - began
    result = budget.result(rank=4)
    assert (result.rank, result.steps) == (4, 3)
    assert sum(result.parts.values()) == pytest.approx(result.seconds)
    assert 0.018 <= result.seconds <= wall
    assert result.parts["forward"] >= 0.009
    assert result.parts["pull"] >= 0.006
    assert result.parts[LOOP] >= 0.003
    assert result.parts["forward"] + result.parts["pull"] <= wall


def test_calls_outside_of_training_do_not_count() -> None:
    budget = StepBudget()
    double = budget.timed("forward", lambda x: 2 * x)
    assert double(3) == 6
    assert budget.result(0).parts == {}
    budget.start()
    budget.stop()
    assert double(4) == 8
    assert "forward" not in budget.result(0).parts


def test_a_part_that_fails_ends(clock_time: FakeTime) -> None:
    budget = StepBudget()

    def fail() -> None:
        clock_time.now += 1
        raise KeyError("x")

    budget.start()
    with pytest.raises(KeyError):
        budget.timed("pull", fail)()
    clock_time.now += 2
    budget.stop()
    assert budget.result(0).parts == {LOOP: 2.0, "pull": 1.0}


def test_workers_of_a_process_have_a_clock_each() -> None:
    budget = StepBudget()
    work = budget.timed("forward", burn)
    together = threading.Barrier(2)

    def worker() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("worker")
        budget.start()
        together.wait()
        work(0.1)
        together.wait()
        budget.stop()

    threads = [threading.Thread(target=worker) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = budget.result(0)
    assert result.parts["forward"] >= 0.2
    assert "worker" not in result.background


def test_backward_passes_are_timed_and_then_no_longer() -> None:
    before = torch.Tensor.backward
    budget = StepBudget()
    with budget.backward_timed():
        budget.start()
        x = torch.ones(3, requires_grad=True)
        (2 * x).sum().backward()
        budget.stop()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert budget.result(0).parts["backward"] > 0
    assert torch.Tensor.backward is before


def test_a_timed_loader_is_like_the_loader() -> None:
    class Loader:
        batch_size = 7

        def __iter__(self) -> Iterator[int]:
            burn(0.002)
            yield 1

        def __len__(self) -> int:
            return 1

    budget = StepBudget()
    loader: Any = budget.batches(Loader())
    assert (len(loader), loader.batch_size) == (1, 7)
    budget.start()
    assert list(loader) == [1]
    budget.stop()
    assert list(loader) == [1]  # an epoch that does not count
    result = budget.result(0)
    assert result.parts["loader"] >= 0.002
    assert result.steps == 1


def test_threads_beside_the_workers_are_found() -> None:
    times = ThreadTimes()
    done, measured = threading.Event(), threading.Event()

    def background() -> None:
        burn(0.1)
        done.set()
        measured.wait()

    thread = threading.Thread(target=background)
    thread.start()
    done.wait()
    assert thread.native_id is not None
    with_it = sum(times.since({threading.get_native_id()}).values())
    without = sum(times.since({threading.get_native_id(), thread.native_id}).values())
    measured.set()
    thread.join()
    assert with_it - without >= 0.08  # the kernel counts in hundredths of a second


def test_a_missing_py_spy_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flame_graph, "find_py_spy", lambda: None)
    with (
        pytest.raises(flame_graph.NoFlameGraph, match="py-spy is not installed: pip install"),
        flame_graph.flame_graph(tmp_path / "flame.svg"),
    ):
        raise AssertionError("it has to be said before")


def test_what_keeps_py_spy_from_looking_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(flame_graph, "find_py_spy", lambda: os.fspath(program))
    with pytest.raises(
        flame_graph.NoFlameGraph, match="cannot look at the process: Error: Permission denied"
    ):
        flame_graph._attach(tmp_path / "flame.svg")
