"""Scratch folders go with their run or, after a SIGKILL, with the next start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from adabench.harness import scratch
from adabench.harness.scratch import scratch_folder, sweep

OWNER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from adabench.harness.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "spec.json").write_text("{}")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_is_removed_with_its_run() -> None:
    with scratch_folder() as folder:
        (folder / "file").touch()
    assert not folder.exists()


def test_only_what_a_dead_process_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adabench-notes.txt").touch()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        monkeypatch.setattr(scratch, "_YOUNG_SECONDS", 0.0)
        assert sweep() == []
        owner.kill()
    monkeypatch.setattr(scratch, "_YOUNG_SECONDS", 3600.0)
    assert sweep() == []  # as if its owner had not locked it yet
    assert folder.is_dir()
    monkeypatch.setattr(scratch, "_YOUNG_SECONDS", 0.0)
    assert sweep() == [folder]
    assert [file.name for file in tmp_path.iterdir()] == ["adabench-notes.txt"]
