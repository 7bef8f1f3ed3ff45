"""Measures speed as a ratio: our code and a reference run alternately in the same process.

Seconds depend on the machine; the ratio of two interleaved measurements depends on it much less. They are CPU
seconds of the whole process, including background threads, because the wall clock would also count other load
of the machine. There are five rounds by default, and more with ``--benchmark-min-rounds``.

Without a baseline, as in ``make test``, speed is shown but not judged, and tests fail only for wrong results.
``make bench`` judges the ratios by the files in ``baselines/``, one for each processor, which ``make
bench-baseline`` writes, and single figures by their limits.
"""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from adabench.harness.machine.environment import capture, machine_name, processor_name

from .gate import FEWEST_ROUNDS, Baseline, NoBaseline, Rounds, regression
from .goals import ROWS, Limit, goal_table, write_record
from .goals import goal as goal  # a fixture
from .studies import rows_of_studies

SESSIONS = Path(__file__).resolve().parents[2] / "results" / "sessions"

RATIOS = pytest.StashKey[list[str]]()
BEFORE = pytest.StashKey[Baseline]()
RECORDED = pytest.StashKey[Baseline]()
SLOWER = pytest.StashKey[list[str]]()
WRITTEN = pytest.StashKey[list[Path]]()

Ratio = Callable[[Callable[[], object], Callable[[], object]], float]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("performance gate")
    group.addoption(
        "--baseline",
        type=Path,
        help="fail what has become slower than this processor's baseline in this folder",
    )
    group.addoption(
        "--record-baseline",
        type=Path,
        help="add this run's ratios to this processor's baseline in this folder",
    )
    group.addoption(
        "--record-goals", type=Path, help="write the measured figures and their goals to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    # These options exist only if this folder was on pytest's command line.
    before, recorded = (config.getoption(name, None) for name in ("--baseline", "--record-baseline"))
    if before is None and recorded is None:
        return
    rounds = config.getoption("benchmark_min_rounds")
    if rounds < FEWEST_ROUNDS:
        raise pytest.UsageError(f"--benchmark-min-rounds={rounds}: a baseline needs {FEWEST_ROUNDS} at least")
    processor = processor_name(capture())
    try:
        if before is not None:
            config.stash[BEFORE] = Baseline.read(before, processor)
    except NoBaseline as missing:
        raise pytest.UsageError(f"{missing}") from missing
    if recorded is not None:
        begun = Baseline.file(recorded, processor).is_file()
        config.stash[RECORDED] = Baseline.read(recorded, processor) if begun else Baseline(processor, {})


@pytest.fixture
def judged(request: pytest.FixtureRequest) -> bool:
    """Whether speeds are judged by their bounds, for which the measured blocks must be long enough."""
    return BEFORE in request.config.stash


@pytest.fixture
def limit(judged: bool) -> Limit:
    """A function that fails the test if a figure of speed is beyond its bound.

    It is called as ``limit(what, figure, at_most)``, and fails only where speed is judged: under other work,
    or on another machine, a right program may be slow.
    """

    def check(what: str, figure: float, at_most: float) -> None:
        if judged and figure > at_most:
            pytest.fail(f"{what}: {figure:.4g}, where {at_most:g} is the most", pytrace=False)

    return check


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Neither side gets more threads than the other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Python's garbage collector is off, so that it does not fall into one side's time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def ratio(benchmark: BenchmarkFixture, request: pytest.FixtureRequest, no_collection: None) -> Ratio:
    """A function that takes our callable and the reference, and returns how many times as fast ours is.

    Both do the same work and should take some milliseconds. They run alternately; the result is the median
    over the rounds of the reference's CPU seconds divided by ours. It is stored in pytest-benchmark's
    ``extra_info`` as ``ratio``, beside the median seconds of the reference, and shown in the list at the end
    of the run. The test fails if our code has become slower than a given baseline.
    """

    def measure(ours: Callable[[], object], reference: Callable[[], object]) -> float:
        ours()
        reference()
        rounds = Rounds(ours, reference)
        # `setup` runs before each round, outside the time that pytest-benchmark takes: the two interleave.
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            rounds.ours, setup=rounds.reference, rounds=request.config.getoption("benchmark_min_rounds")
        )
        result = median(rounds.ratios)
        reference_seconds = median(rounds.reference_seconds)
        benchmark.extra_info.update(ratio=result, reference_seconds=reference_seconds)
        stash = request.config.stash
        stash.setdefault(RATIOS, []).append(
            f"{request.node.name}: {result:.2f} × the reference's speed "
            f"({median(rounds.our_seconds) * 1e3:.2f} ms against {reference_seconds * 1e3:.2f} ms)"
        )
        name = request.node.nodeid
        if RECORDED in stash:
            stash[RECORDED].add(name, rounds.ratios)
        if BEFORE in stash and name in stash[BEFORE].ratios:
            slower = regression(rounds.ratios, stash[BEFORE].ratios[name])
            if slower is not None:
                stash.setdefault(SLOWER, []).append(f"{name}: {slower}")
                pytest.fail(slower, pytrace=False)
        return result

    return measure


def pytest_sessionfinish(session: pytest.Session) -> None:
    if RECORDED in session.config.stash:
        session.config.stash[RECORDED].write(session.config.getoption("--record-baseline"))
    goals = session.config.getoption("--record-goals", None)
    if goals is not None:
        of_studies, costs = rows_of_studies(SESSIONS, processor_name(capture()))
        rows = [*session.config.stash.get(ROWS, []), *of_studies]
        session.config.stash[ROWS] = rows
        session.config.stash[WRITTEN] = [goals, write_record(goals, machine_name(capture()), rows, costs)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for title, key in (("speed ratios", RATIOS), ("performance regressions", SLOWER)):
        lines = config.stash.get(key, [])
        if lines:
            terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
    if ROWS in config.stash:
        terminalreporter.section("goals")
        terminalreporter.write_line(goal_table(config.stash[ROWS]))
    for file in config.stash.get(WRITTEN, []):
        terminalreporter.write_line(f"written: {file}")
