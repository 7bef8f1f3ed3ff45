"""The command line as a subprocess, with the test's own plugins installed."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from adabench.harness.launch.fork_server import ForkServer
from tests.conftest import free_port
from tests.processes import environment_of_rank
from tests.warm import RUN_ADABENCH, WarmProcess, run_warm

from .faults import network

PLUGINS = Path(__file__).parent / "plugins"

Adabench = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-faults", type=Path, help="write what the matrix of faults found to this file")
    parser.addoption("--record-agents", type=Path, help="write what two agents went through to this file")


@pytest.fixture(scope="module")
def cable() -> Iterator[network.Cable]:
    """Two network namespaces, and a cable between them."""
    reason = network.reason_without()
    if reason is not None:
        pytest.skip(reason)
    with network.Cable() as laid:
        yield laid


@pytest.fixture
def plugin_environment() -> dict[str, str]:
    path = os.pathsep.join([str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture
def adabench(tmp_path: Path, plugin_environment: dict[str, str], warm: ForkServer) -> Adabench:
    """Run ``adabench ARGUMENTS`` in an empty folder."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_warm(warm, arguments, plugin_environment, tmp_path, 900.0, RUN_ADABENCH)

    return call


@pytest.fixture
def run_ranks(tmp_path: Path, warm: ForkServer) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Run a Python program as the ranks of a cluster and return the completed processes.

    The test fails if one of them exceeds `timeout` seconds. With `anew`, each rank is a freshly started
    interpreter; without it, each is a fork that has already imported PyTorch.
    """

    def run(
        program: str, ranks: int, *arguments: str, timeout: float = 240.0, anew: bool = False
    ) -> list[subprocess.CompletedProcess[str]]:
        port = free_port()
        command = ["-W", "error", "-c", program, *arguments]

        def begin(rank: int) -> subprocess.Popen[str] | WarmProcess:
            place = environment_of_rank(rank, ranks, port) if ranks > 1 else {"OMP_NUM_THREADS": "1"}
            environment = {**os.environ, **place}
            if not anew:
                return WarmProcess(warm, command, environment, tmp_path)
            pipe = subprocess.PIPE
            return subprocess.Popen(
                [sys.executable, *command], cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True
            )

        processes = [begin(rank) for rank in range(ranks)]
        try:
            with ThreadPoolExecutor(ranks) as pool:
                said = list(pool.map(lambda process: process.communicate(timeout=timeout), processes))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [
            subprocess.CompletedProcess(command, process.wait(), *texts)
            for process, texts in zip(processes, said, strict=True)
        ]

    return run


@pytest.fixture
def start(tmp_path: Path, plugin_environment: dict[str, str], warm: ForkServer) -> Iterator[Any]:
    """Start ``adabench ARGUMENTS`` without waiting for it; it may print some kilobytes."""
    started: list[WarmProcess] = []

    def call(*arguments: str) -> WarmProcess:
        started.append(WarmProcess(warm, arguments, plugin_environment, tmp_path, RUN_ADABENCH))
        return started[-1]

    yield call
    for process in started:
        process.end()


@pytest.fixture
def marked(plugin_environment: dict[str, str], tmp_path: Path) -> Callable[[], list[int]]:
    """Find the processes that descend from the command line of this test.

    They are found by a variable in the environment of a started program, and by the working directory, which
    forks share.
    """
    plugin_environment["ADABENCH_TEST_MARK"] = mark = uuid.uuid4().hex

    def find() -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                begun_with = process.environ().get("ADABENCH_TEST_MARK")
                if begun_with == mark or Path(process.cwd()).is_relative_to(tmp_path):
                    found.append(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    return find


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], float], bool]:
    """Ask again and again until a condition holds or time is up; returns whether it holds."""

    def wait(condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    return wait


def logs_hold(folder: Path, text: str) -> bool:
    """Whether the log of any run of a session in `folder` contains `text`."""
    return any(text in log.read_text() for log in folder.glob("adabench-results/*/logs/*"))
