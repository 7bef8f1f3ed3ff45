"""Fixtures for all tests."""

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from adabench.harness.launch.fork_server import Fork, ForkServer
from tests.processes import environment_of_rank
from tests.warm import RUN_PYTHON, run_warm, whole

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"
COMMANDS = (
    "adabench.harness.cli.main",
    "adabench.harness.session.execute",
    "adabench.analysis.figures",
    "adabench.analysis.report",
)
"""Modules that the most frequent commands of tests import."""
LONG = (
    "tests/models/test_models.py",
    "tests/integration/test_faults.py",
    "tests/integration/test_two_agents.py",
    "tests/integration/test_mixed_load.py",
    "tests/integration/test_tutorials.py",
    "tests/integration/test_examples.py",
    "tests/unit/test_packaging.py",
    "tests/integration/test_hosts.py",
    "tests/integration/test_agents.py",
    "tests/integration/test_checkpoints.py",
    "tests/integration/test_unclosed.py",
    "tests/integration/test_cli_",
    "tests/integration/test_guarantees_",
    "tests/integration/",
    "tests/conformance/",
)
"""Beginnings of the names of slow tests."""

STDERR = pytest.StashKey[int]()

Work = Callable[..., dict[str, Any]]
Launch = Callable[..., list[dict[str, Any]]]
Python = Callable[..., subprocess.CompletedProcess[str]]
RunRanks = Callable[..., list[subprocess.CompletedProcess[str]]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="give the server's tests their full size (half an hour)"
    )
    parser.addoption(
        "--device", default="cpu", help="where the models of other libraries are trained, cuda for instance"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis try the same few examples each time, and many new ones with ``--full``."""
    hypothesis.settings.register_profile(
        "short", max_examples=100, stateful_step_count=30, derandomize=True, deadline=None
    )
    hypothesis.settings.register_profile(
        "full", max_examples=5000, stateful_step_count=60, deadline=None, print_blob=True
    )
    hypothesis.settings.load_profile("full" if config.getoption("--full") else "short")
    assert sys.__stderr__ is not None
    config.stash[STDERR] = os.dup(sys.__stderr__.fileno())  # before it is captured


def pytest_unconfigure(config: pytest.Config) -> None:
    if STDERR in config.stash:  # it is not if another plugin has refused the command line
        os.close(config.stash[STDERR])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest tests first, so that no process is left with a slow test when the others are done."""

    def place(item: pytest.Item) -> int:
        return next((i for i, begin in enumerate(LONG) if item.nodeid.startswith(begin)), len(LONG))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """End this process, with where each thread was, if the end of a test hangs.

    The plugins that would do so watch a test no longer once it has failed.
    """
    seconds = float(item.config.getini("faulthandler_timeout"))
    faulthandler.dump_traceback_later(seconds, file=item.config.stash[STDERR], exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether tests that have two sizes run at the full one."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Shells have their background ignore SIGINT, and what tests start would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the tests a separate cache instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADABENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the repository; tests that need it are skipped without it.

    Other tests check the same properties on small files that they write themselves.
    """
    if not SHARED_DATA.is_dir():
        pytest.skip(
            "no folder with real data at ../shared/data, beside the repository; small ones were tested"
        )
    return SHARED_DATA


@pytest.fixture(scope="session")
def warm() -> Iterator[ForkServer]:
    """A process that has imported PyTorch and the command line, so that others need not."""
    with ForkServer(COMMANDS) as server:
        server.start()
        yield server


@pytest.fixture
def python(warm: ForkServer) -> Python:
    """Run ``python ARGUMENTS``, which need not import PyTorch, to its end.

    ``python(*arguments, folder=ROOT, timeout=600, environment=os.environ)`` gives what `subprocess.run`
    gives, with the output as text.
    """

    def run(
        *arguments: str,
        folder: Path = ROOT,
        timeout: float = 600.0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return run_warm(warm, arguments, os.environ if environment is None else environment, folder, timeout)

    return run


WITHOUT_LOADER = "no loader has signalled intent"


@pytest.fixture
def launch(tmp_path: Path, warm: ForkServer) -> Launch:
    """Call a function of a module in the ranks of a cluster.

    ``launch(work, ranks, timeout=240, **arguments)`` returns what ``work(**arguments)`` returned in each
    rank; arguments and results go through JSON. The test fails if a rank fails, writes anything, or exceeds
    the timeout. Ranks may warn that no loader has signalled intent, because many train without a loader.
    """

    def run(work: Work, ranks: int, timeout: float = 240.0, **arguments: Any) -> list[dict[str, Any]]:
        reports, said = reports_of_ranks(warm, tmp_path, work, ranks, timeout, arguments)
        lines = [line for text in said for line in text.splitlines()]
        assert [line for line in lines if not line.startswith(WITHOUT_LOADER)] == []
        return reports

    return run


def reports_of_ranks(
    warm: ForkServer, folder: Path, work: Work, ranks: int, timeout: float, arguments: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What ``work(**arguments)`` returned in each rank, and its standard error; output is in `folder`."""
    deadline = time.monotonic() + timeout
    port = free_port()
    program = ["-m", "tests.rank", work.__module__, work.__name__, json.dumps(arguments)]
    processes: list[Fork] = []
    try:
        for rank in range(ranks):
            with (folder / f"{rank}.out").open("wb") as out, (folder / f"{rank}.err").open("wb") as err:
                environment = whole({**os.environ, **environment_of_rank(rank, ranks, port)})
                command = [str(ROOT), *program]
                processes.append(warm.fork(RUN_PYTHON, command, environment, out.fileno(), err.fileno()))
        codes = [process.wait(max(deadline - time.monotonic(), 0.0)) for process in processes]
    finally:
        for process in processes:
            process.end()
    said = [(folder / f"{rank}.err").read_text() for rank in range(ranks)]
    late = [rank for rank, code in enumerate(codes) if code is None]
    assert not late, f"ranks {late} of {program} were not done in {timeout} s\n" + "\n".join(said)
    assert not any(codes), f"exit codes {codes} of {program}:\n" + "\n".join(said)
    return [json.loads((folder / f"{rank}.out").read_text()) for rank in range(ranks)], said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
