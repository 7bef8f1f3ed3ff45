"""Who may write checkpoints to a directory: one job at a time, and never one that was taken over."""

import errno
import gc
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import adaps
from adaps.checkpoint import disk_calls
from tests.checkpoint_files import manifest


def table() -> adaps.Table:
    return adaps.Table("emb", 4, 1)


def files_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def other_process(directory: Path) -> str:
    """The exception of another process that writes a checkpoint to the directory, or an empty text."""
    program = f"""
import adaps
with adaps.Node([adaps.Table("emb", 4, 1)]) as node:
    try:
        node.checkpoint({str(directory)!r})
    except adaps.CheckpointError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_second_job_is_told_who_writes_there_until_that_one_ends(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        node.checkpoint(tmp_path)
        before = files_of(tmp_path)
        said = other_process(tmp_path)
        assert re.fullmatch(
            rf"{tmp_path} is in use: process {os.getpid()} on {socket.gethostname()} \(since .*\) writes its "
            r"checkpoints there; give each job a directory of its own, or end that one",
            said,
        )
        assert files_of(tmp_path) == before
        with (
            adaps.Node([table()]) as second,
            pytest.raises(adaps.CheckpointError, match="another node of this"),
        ):
            second.checkpoint(tmp_path)
        node.checkpoint(tmp_path)
    assert other_process(tmp_path) == ""


def test_a_checkpoint_that_is_refused_leaves_the_directory_to_others(tmp_path: Path) -> None:
    path = tmp_path / "manifest-00000001.json"
    path.write_text("{}")
    with adaps.Node([table()]) as node:
        with pytest.raises(adaps.CheckpointError, match="manifest-00000001"):
            node.checkpoint(tmp_path)
        path.unlink()
        assert other_process(tmp_path) == ""


def test_a_node_of_the_same_process_goes_on_after_one_that_ended_or_was_forgotten(tmp_path: Path) -> None:
    def interrupted() -> None:
        with adaps.Node([table()]) as node:
            node.checkpoint(tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    forgotten = adaps.Node([table()])
    forgotten.checkpoint(tmp_path)
    del forgotten
    gc.collect()
    with adaps.Node([table()]) as node:
        node.checkpoint(tmp_path)
    assert manifest(tmp_path)["sequence"] == 3


def test_a_child_that_outlives_the_process_leaves_the_directory_to_others(tmp_path: Path) -> None:
    parent = f"""
import os, signal, adaps
with adaps.Node([adaps.Table("emb", 4, 1)]) as node:
    node.checkpoint({str(tmp_path)!r})
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert process.wait(timeout=120) == -signal.SIGKILL
            assert other_process(tmp_path) == ""
        finally:
            os.kill(child, signal.SIGKILL)


def test_without_locks_the_first_job_is_told_that_it_was_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(path: Path, text: bytes) -> int:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(disk_calls, "lock", no_locks)
    with adaps.Node([table()]) as node:
        node.checkpoint(tmp_path)
        assert "cannot be locked, so a second job is detected only when it writes there" in caplog.text
        monkeypatch.undo()
        said = other_process(tmp_path)
        assert said == ""
        before = files_of(tmp_path)
        for _ in range(2):
            with pytest.raises(adaps.CheckpointError) as refusal:
                node.checkpoint(tmp_path)
            assert re.fullmatch(
                rf"{tmp_path} was taken over by process \d+ on .*: this job, process {os.getpid()} on .*, "
                "no longer writes checkpoints there",
                str(refusal.value),
            )
        assert files_of(tmp_path) == before


def test_a_file_system_without_links_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(disk_calls, "link", no_links)
    with (
        adaps.Node([table()]) as node,
        pytest.raises(adaps.CheckpointError, match="is on a file system without hard links"),
    ):
        node.checkpoint(tmp_path)


def test_a_link_whose_answer_was_lost_is_known_to_have_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = disk_calls.link

    def asked_twice(source: Path, target: Path) -> None:
        original(source, target)
        original(source, target)

    monkeypatch.setattr(disk_calls, "link", asked_twice)
    with adaps.Node([table()]) as node:
        node.checkpoint(tmp_path)
        node.checkpoint(tmp_path)
    assert manifest(tmp_path)["sequence"] == 2
