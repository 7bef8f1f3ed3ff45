"""Runs in unusual environments of Python work as elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adabench.results.store import list_sessions

ENVIRONMENTS = {
    "C locale": {"LC_ALL": "C"},
    "C locale without UTF-8 mode": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no docstrings and assertions": {"PYTHONOPTIMIZE": "2"},
}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_paths_with_accents_are_read_and_written(tmp_path: Path, environment: str) -> None:
    lines = [f"u{row % 7},i{row % 5},{row % 5 + 1}\n" for row in range(80)]
    (tmp_path / "dätä.csv").write_text("".join(lines))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "adabench.harness.cli", "run", "-u", "mf[epochs=1,batch=16]"),
            *("-b", "single", "--nodes", "1", "-r", "1", "--data", "dätä.csv", "--results", "résults"),
        ],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENTS[environment]},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (store,) = list_sessions(tmp_path / "résults")
    assert [run.status for run in store.runs()] == ["ok"]
