"""Prerequisites that the doctor finds missing, and leftovers of crashed runs."""

import importlib.metadata
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from adabench.harness.checks import prerequisites
from adabench.harness.checks.prerequisites import complaints_about
from adabench.harness.machine import orphans
from adabench.harness.machine.process_identity import HARNESS_VARIABLE, ProcessIdentity
from adabench.harness.study.study import load_study

FINE = {"compiler": "c++ 1"}


def test_nothing_is_missing_here() -> None:
    assert complaints_about(FINE, None) == []


def test_a_missing_compiler_and_a_wrong_torch_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "pandas":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.0.1" if name == "torch" else installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    pandas, torch, compiler = complaints_about({"compiler": None}, None)
    assert pandas.startswith("pandas is not installed: pandas>=")
    assert torch.startswith("torch is 2.0.1: torch>=2.9 is needed")
    assert compiler.startswith("there is no C++ compiler")


def test_blocked_ports_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **named: Any) -> socket.socket:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    (complaint,) = complaints_about(FINE, None)
    assert "no connection can be made on the loopback interface ([Errno 111] Connection refused)" in complaint


def test_a_file_larger_than_memory_is_no_complaint_for_it_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "train.csv"
    with data.open("wb") as sparse:
        sparse.truncate(2**40)
    file = tmp_path / "study.toml"
    file.write_text(f'usecases = ["ctr"]\nbackends = ["prefetch"]\n[data]\nctr = "{data}"\n')
    monkeypatch.setattr(prerequisites, "cells_of", lambda study: [SimpleNamespace(nodes=1)])  # reads it
    assert complaints_about(FINE, load_study(file, "study", {})) == []


def test_too_little_memory_for_a_study_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "study.toml"
    file.write_text('usecases = ["ctr"]\nbackends = ["prefetch"]\nnodes = [1, 4]\n')
    study = load_study(file, "study", {})
    assert complaints_about(FINE, study) == []
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**27))
    (complaint,) = complaints_about(FINE, study)
    assert "GiB for 4 nodes, but only 0.1 GiB are available" in complaint


def test_what_crashed_runs_left_is_found_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(orphans, "SHARED_MEMORY", tmp_path)
    here = ProcessIdentity.this_process()
    gone = msgspec.structs.replace(here, started=here.started + 1)  # a process whose identifier was reused
    elsewhere = msgspec.structs.replace(gone, namespace="pid:[1]")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    shared = [tmp_path / f"torch_{pid}_1_0" for pid in (ended.pid, os.getpid())]
    for file in shared:
        file.touch()
    (tmp_path / "adabench-results").mkdir()
    sleep = [sys.executable, "-c", "print(flush=True); input()"]
    with ExitStack() as started:
        orphan, *others = (
            started.enter_context(
                subprocess.Popen(
                    sleep,
                    env={**os.environ, HARNESS_VARIABLE: group},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for group in (gone.text(), here.text(), elsewhere.text(), "1", "{")
        )
        for process in (orphan, *others):
            assert process.stdout is not None
            process.stdout.readline()
        found = orphans.find()
        mine = {process.pid for process in (orphan, *others)}
        ours = [process for process in found.processes if process.pid in mine]
        assert [process.pid for process in ours] == [orphan.pid]
        assert found.folders == []
        assert found.shared_files == [shared[0]]
        orphans.clean(found._replace(processes=ours))
        assert not psutil.pid_exists(orphan.pid)
        assert [process.poll() for process in others] == [None] * len(others)
        for process in others:
            process.kill()
    # Files in shared memory are named, never removed: they may be another program's.
    assert sorted(tmp_path.iterdir()) == [tmp_path / "adabench-results", *sorted(shared)]
