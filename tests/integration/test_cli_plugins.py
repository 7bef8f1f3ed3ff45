"""A stranger's plugins, from the scaffold to a comparison."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from adabench.results.store import list_sessions


def test_a_scaffolded_package_is_installed_listed_checked_run_and_compared(
    adabench: Any, tmp_path: Path, plugin_environment: dict[str, str], marked: Any
) -> None:
    site = tmp_path / "site"
    for kind, name in (("backend", "mine"), ("usecase", "task")):
        assert adabench("new", kind, name).returncode == 0
        # Offline: the build tools are those of this environment, and adabench itself is installed already.
        command = ["-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--target", str(site)]
        subprocess.run([sys.executable, *command, str(tmp_path / f"adabench-{name}")], check=True)
    plugin_environment["PYTHONPATH"] += os.pathsep + str(site)

    assert "adabench-mine" in adabench("list", "backends").stdout
    assert "adabench-task" in adabench("list", "usecases").stdout

    usecase = adabench("check", "usecase", "task")
    assert usecase.returncode == 0, usecase.stdout + usecase.stderr
    assert usecase.stdout.count("ok ") == len(usecase.stdout.splitlines()) == 10

    backend = adabench("check", "backend", "mine")
    assert backend.returncode == 0, backend.stdout + backend.stderr
    assert "signals intent on every node" in backend.stdout

    (tmp_path / "study.toml").write_text(
        'usecases = ["task[epochs=1]"]\nbackends = ["mine", "single"]\nrepeats = 1\n'
    )
    planned = adabench("plan", "study.toml")
    assert "study study: 2 cells, 1 blocks, 2 runs" in planned.stdout
    assert "time: not known; 2 of 2 runs" in planned.stdout
    done = adabench("run", "study.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    (store,) = list_sessions(tmp_path / "adabench-results")
    assert {run.backend: run.status for run in store.runs()} == {"mine": "ok", "single": "ok"}
    assert "time: about" in adabench("plan", "study.toml").stdout

    compared = adabench("compare", "--baseline", "single")
    assert compared.returncode == 0
    assert "too few runs" in compared.stdout
    failing = adabench("compare", "--baseline", "single", "--fail-if", "ratio > 0")
    assert failing.returncode == 3
    assert "cannot be judged: task mine, 2 nodes, loopback against 1 node: too few runs" in failing.stdout
    assert (tmp_path / adabench("report").stdout.strip()).is_file()
    assert (tmp_path / adabench("export", "--to", "json").stdout.strip()).is_file()
    assert marked() == []


def test_broken_plugins_are_found_out(adabench: Any) -> None:
    done = adabench("check", "usecase", "fake-line")
    assert done.returncode == 1
    assert "FAILED keys() names the rows that the loss reads" in done.stdout
    assert "Traceback" not in done.stderr
