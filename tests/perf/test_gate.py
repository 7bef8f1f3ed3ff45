"""The gate itself: a slowdown of a fifth is caught, repetitions of the same raise no alarm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from adabench.harness.machine.environment import capture, processor_name
from tests.conftest import Python

from . import gate
from .gate import Baseline, NoBaseline, regression

if TYPE_CHECKING:
    from tests.perf.conftest import Ratio
    from tests.perf.goals import Limit

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 25
SLOW = "ADABENCH_TEST_SLOW"
"""Set for a command that shall fail because of a figure that is too large."""

Work = Callable[[float], None]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """A function that takes some seconds of a simulated clock."""
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(gate, "process_time", lambda: now)
    return spend


def test_a_fifth_is_caught_and_the_same_raises_no_alarm() -> None:
    """Rounds vary by 6 % in processes that vary by 2 %, the most that a quiet machine shows."""
    generator = np.random.default_rng(1)

    def rounds(speed: float) -> list[float]:
        process = speed * np.exp(generator.normal(0, 0.02))
        return [float(ratio) for ratio in process * np.exp(generator.normal(0, 0.06, ROUNDS))]

    trials = 300
    alarms = caught = 0
    for _ in range(trials):
        before = [float(np.median(rounds(1.3))) for _ in range(5)]
        alarms += regression(rounds(1.3), before) is not None
        caught += regression(rounds(1.3 / 1.25), before) is not None
    assert alarms == 0
    assert caught > 0.85 * trials


def test_varying_rounds_are_no_proof() -> None:
    assert regression([0.8] * ROUNDS, [1.0, 1.1]) == (
        "slower than the baseline by 25%: 0.800 [0.800, 0.800] × the reference's speed, at least 1.000 before"
    )
    assert regression([0.8] * 13 + [1.0] * 12, [1.0, 1.1]) is None
    assert regression([0.93] * ROUNDS, [1.0, 1.1]) is None


@pytest.mark.parametrize(("ours", "expected"), [(1.0, 1.0), (1.25, 0.8), (0.5, 2.0)])
def test_ratio_is_that_of_the_work(ratio: Ratio, work: Work, ours: float, expected: float) -> None:
    assert ratio(lambda: work(ours), lambda: work(1.0)) == pytest.approx(expected)


def test_a_limit_holds_where_speed_is_judged(limit: Limit) -> None:
    limit("something slow", float(os.environ.get(SLOW, "1")), 2.0)


def test_only_a_baseline_of_the_same_processor_is_read(tmp_path: Path) -> None:
    Baseline("Fast 1, 2 cores", {"a": [1.0]}).write(tmp_path)
    Baseline("Slow (R) 2, 2 cores", {"a": [2.0]}).write(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "fast-1-2-cores.json",
        "slow-r-2-2-cores.json",
    ]
    assert Baseline.read(tmp_path, "Slow (R) 2, 2 cores").ratios == {"a": [2.0]}
    with pytest.raises(
        NoBaseline, match=r"no baseline of this processor \(Other\) in .*: `make bench-baseline`"
    ):
        Baseline.read(tmp_path, "Other")
    (tmp_path / "fast-1-2-cores.json").rename(tmp_path / "other.json")
    with pytest.raises(
        NoBaseline, match=r"other\.json is of another processor \(Fast 1, 2 cores\) than this"
    ):
        Baseline.read(tmp_path, "Other")


def test_a_committed_baseline_has_the_name_of_its_processor() -> None:
    folder = Path(__file__).parent / "baselines"
    for file in folder.iterdir():
        processor = msgspec.json.decode(file.read_bytes(), type=Baseline).processor
        assert Baseline.file(folder, processor) == file


def test_the_command_records_a_baseline_and_fails_by_it(tmp_path: Path, python: Python) -> None:
    name = "tests/perf/test_gate.py::test_ratio_is_that_of_the_work[0.5-2.0]"
    limited = "tests/perf/test_gate.py::test_a_limit_holds_where_speed_is_judged"

    # Under parallel tests, the started processes would assume parallel tests, too, and measure nothing.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    alone[SLOW] = "3"

    def bench(*options: str) -> subprocess.CompletedProcess[str]:
        command = ("-m", "pytest", "-p", "no:cacheprovider", name, limited)
        return python(*command, *options, environment=alone)

    processor = processor_name(capture())
    missing = bench("--benchmark-min-rounds=15", f"--baseline={tmp_path}")
    assert missing.returncode == pytest.ExitCode.USAGE_ERROR
    (said,) = missing.stderr.strip().splitlines()
    assert said.endswith(
        f"there is no baseline of this processor ({processor}) in {tmp_path}: `make bench-baseline` makes one"
    )
    assert "needs 8 at least" in bench("--benchmark-min-rounds=5", f"--record-baseline={tmp_path}").stderr

    # Without a baseline, as in `make test`, nothing is too slow.
    assert bench("--benchmark-min-rounds=15", f"--record-baseline={tmp_path}").returncode == 0
    baseline = Baseline.read(tmp_path, processor)
    assert baseline.ratios[name] == [2.0]

    baseline.ratios[name] = [2.6, 2.5]
    baseline.write(tmp_path)
    slower = bench("--benchmark-min-rounds=15", f"--baseline={tmp_path}")
    assert slower.returncode == pytest.ExitCode.TESTS_FAILED
    assert f"\n{name}: slower than the baseline by 25%" in slower.stdout
    assert "something slow: 3, where 2 is the most" in slower.stdout
    assert "2 failed" in slower.stdout
