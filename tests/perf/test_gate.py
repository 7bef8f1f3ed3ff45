"""The gate itself: a slowdown of a fifth is caught, five repetitions of the same raise no alarm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest
import torch

import adaps

from .gate import Baseline, Rounds, regression

if TYPE_CHECKING:
    from tests.perf.conftest import Ratio

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 25

Work = Callable[[int], None]


def interpreted(units: int) -> None:
    for _ in range(units):
        sum(number * number for number in range(5_000))


@pytest.fixture
def pulled() -> Iterator[Work]:
    """Pulls of random rows out of far more than a cache holds."""
    rows, length, size = 200_000, 32, 2_000
    with adaps.Node([adaps.Table("t", rows=rows, length=length)]) as node:
        worker = node.worker(0)
        keys = torch.randint(rows, (20, size), generator=torch.Generator().manual_seed(1))
        out = torch.empty(size, length)

        def pull(units: int) -> None:
            for unit in range(units):
                worker.pull(keys[unit % len(keys)], out)

        yield pull


@pytest.fixture(params=["interpreted", "pulled"])
def work(request: pytest.FixtureRequest) -> Work:
    if request.param == "pulled":
        pull: Work = request.getfixturevalue("pulled")
        return pull
    return interpreted


def ratios(ours: Callable[[], object], reference: Callable[[], object]) -> list[float]:
    rounds = Rounds(ours, reference)
    for _ in range(ROUNDS):
        rounds.reference()
        rounds.ours()
    return rounds.ratios


def test_a_fifth_is_caught_and_the_same_raises_no_alarm(work: Work, no_collection: None) -> None:
    as_before, slower = partial(work, 20), partial(work, 24)
    baseline = [median(ratios(as_before, as_before)) for _ in range(5)]
    for _ in range(5):
        assert regression(ratios(as_before, as_before), baseline) is None
    said = regression(ratios(slower, as_before), baseline)
    assert said is not None
    assert said.startswith("slower than the baseline by ")


def test_varying_rounds_are_no_proof() -> None:
    assert regression([0.8] * ROUNDS, [1.0, 1.1]) == (
        "slower than the baseline by 25%: 0.800 [0.800, 0.800] × the reference's speed, at least 1.000 before"
    )
    assert regression([0.8] * 13 + [1.0] * 12, [1.0, 1.1]) is None
    assert regression([0.93] * ROUNDS, [1.0, 1.1]) is None


@pytest.mark.parametrize(("units", "expected"), [(10, 1.0), (12, 10 / 12), (5, 2.0)])
def test_ratio_is_that_of_the_work(ratio: Ratio, units: int, expected: float) -> None:
    measured = ratio(lambda: interpreted(5 * units), lambda: interpreted(50))
    assert measured == pytest.approx(expected, rel=0.08)


def test_the_command_records_a_baseline_and_fails_by_it(tmp_path: Path) -> None:
    name = "tests/perf/test_gate.py::test_ratio_is_that_of_the_work[5-2.0]"

    def bench(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", name, *options]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)

    file = tmp_path / "baseline.json"
    missing = bench("--benchmark-min-rounds=15", f"--baseline={file}")
    assert missing.returncode == pytest.ExitCode.USAGE_ERROR
    assert "`make bench-baseline` writes one" in missing.stderr
    assert "needs 8 at least" in bench("--benchmark-min-rounds=5", f"--record-baseline={file}").stderr

    assert bench("--benchmark-min-rounds=15", f"--record-baseline={file}").returncode == 0
    baseline = Baseline.read(file)
    assert baseline.ratios[name] == [pytest.approx(2.0, rel=0.08)]

    baseline.ratios[name] = [2.6, 2.5]
    baseline.write(file)
    slower = bench("--benchmark-min-rounds=15", f"--baseline={file}")
    assert slower.returncode == pytest.ExitCode.TESTS_FAILED
    assert f"\n{name}: slower than the baseline by 2" in slower.stdout
