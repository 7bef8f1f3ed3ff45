"""The command line as a subprocess, with the test's own plugins installed."""

from __future__ import annotations

import os
import socket
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

PLUGINS = Path(__file__).parent / "plugins"

Adabench = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-faults", type=Path, help="write what the matrix of faults found to this file")
    parser.addoption("--record-agents", type=Path, help="write what two agents went through to this file")


@pytest.fixture
def plugin_environment() -> dict[str, str]:
    path = os.pathsep.join([str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture
def adabench(tmp_path: Path, plugin_environment: dict[str, str]) -> Adabench:
    """Run ``adabench ARGUMENTS`` in an empty folder."""

    def call(*arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "adabench.harness.cli", *arguments],
            cwd=tmp_path,
            env=plugin_environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return call


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Run a Python program as the ranks of a cluster, each as its users do; gives how each one ended.

    A test fails if one of them is not done within `timeout` seconds.
    """

    def run(
        program: str, ranks: int, *arguments: str, timeout: float = 240.0
    ) -> list[subprocess.CompletedProcess[str]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        places = [
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            for rank in range(ranks)
        ]
        command = [sys.executable, "-W", "error", "-c", program, *arguments]
        processes = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(place if ranks > 1 else {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for place in places
        ]
        try:
            with ThreadPoolExecutor(ranks) as pool:
                said = list(pool.map(lambda process: process.communicate(timeout=timeout), processes))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [
            subprocess.CompletedProcess(command, process.returncode, *texts)
            for process, texts in zip(processes, said, strict=True)
        ]

    return run


@pytest.fixture
def start(tmp_path: Path, plugin_environment: dict[str, str]) -> Iterator[Any]:
    """Start ``adabench ARGUMENTS`` without waiting for it."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "adabench.harness.cli", *arguments],
            cwd=tmp_path,
            env=plugin_environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def marked(plugin_environment: dict[str, str]) -> Callable[[], list[int]]:
    """The processes that descend from this test's command line, found by a mark in their environment."""
    plugin_environment["ADABENCH_TEST_MARK"] = mark = uuid.uuid4().hex

    def find() -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("ADABENCH_TEST_MARK") == mark:
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
    """Whether a run of a session that is kept in `folder` has said `text`."""
    return any(text in log.read_text() for log in folder.glob("adabench-results/*/logs/*"))
