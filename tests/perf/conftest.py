"""Speed as a ratio: ours and a reference timed in turns in the same run.

Seconds depend on the machine; the ratio of two interleaved measurements does much less so. They are CPU
seconds of the whole process, background threads included: the wall clock would also count what else the
machine does. Five rounds by default, more with ``--benchmark-min-rounds``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from statistics import median
from time import process_time

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

RATIOS = pytest.StashKey[list[str]]()

Ratio = Callable[[Callable[[], object], Callable[[], object]], float]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Neither side gets more threads than the other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ratio(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Iterator[Ratio]:
    """A function of two callables, ours and the reference, that gives how many times as fast ours is.

    Both do the same work and should take some milliseconds. They run in turns; the result is the median over
    the rounds of the reference's CPU seconds divided by ours. It goes into pytest-benchmark's ``extra_info``
    as ``ratio``, beside the median seconds of the reference, and into the list at the end of the run.
    """

    def measure(ours: Callable[[], object], reference: Callable[[], object]) -> float:
        our_seconds: list[float] = []
        reference_seconds: list[float] = []
        ours()
        reference()
        # `setup` runs before each round, outside the time that pytest-benchmark takes: the two interleave.
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            lambda: our_seconds.append(seconds(ours)),
            setup=lambda: reference_seconds.append(seconds(reference)),
            rounds=request.config.getoption("benchmark_min_rounds"),
        )
        result = median(theirs / own for theirs, own in zip(reference_seconds, our_seconds, strict=True))
        benchmark.extra_info.update(ratio=result, reference_seconds=median(reference_seconds))
        request.config.stash.setdefault(RATIOS, []).append(
            f"{request.node.name}: {result:.2f} × the reference's speed "
            f"({median(our_seconds) * 1e3:.2f} ms against {median(reference_seconds) * 1e3:.2f} ms)"
        )
        return result

    gc.collect()
    gc.disable()
    yield measure
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(RATIOS, [])
    if lines:
        terminalreporter.section("speed ratios")
        for line in lines:
            terminalreporter.write_line(line)


def seconds(function: Callable[[], object]) -> float:
    start = process_time()
    function()
    return process_time() - start
