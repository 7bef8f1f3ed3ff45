"""Fixtures for unit tests."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import adaps
from adabench.harness.cli.main import main
from autoada.model import optimizer_lookup
from tests.unit.checkpoints import table, train


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count all once-per-process messages as given, so that messages do not depend on earlier tests."""
    monkeypatch.setattr(optimizer_lookup, "_warned", _Everything())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The directory of a checkpoint after four steps."""
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        node.checkpoint(tmp_path / "saved", extra={"step": 4})
    return tmp_path / "saved"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if (done := subprocess.run(mount, capture_output=True, text=True)).returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> Any:
    """Run `adabench` in an empty folder; returns the exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def say(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["adabench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return say


@pytest.fixture
def refused(said: Any) -> Any:
    """Run `adabench` with arguments that it refuses; returns its message, which must be one line."""

    def refuse(*arguments: str, quiet: bool = True) -> str:
        code, out, err = said(*arguments)
        assert (code, err.count("\n")) == (2, 1), err
        assert not (quiet and out)
        assert err.startswith("error: ")
        return str(err).removeprefix("error: ").rstrip("\n")

    return refuse


class _Everything(set[str]):
    def __contains__(self, sentence: object) -> bool:
        return True
