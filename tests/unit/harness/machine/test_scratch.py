"""Scratch folders go with their run or, after a SIGKILL, with the next start; nothing else ever does."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from adabench.harness.machine.process_identity import ProcessIdentity
from adabench.harness.machine.scratch import MARKER, Marker, abandoned_folders, scratch_folder, sweep

OWNER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from adabench.harness.machine.scratch import scratch_folder
with scratch_folder("a test") as folder:
    (folder / "spec.json").write_text("{}")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextmanager
def living_owner(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a scratch folder, and the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        yield owner, Path(owner.stdout.readline().strip())


@pytest.fixture
def abandoned(tmp_path: Path) -> Path:
    """A scratch folder whose owner was killed."""
    with living_owner(tmp_path) as (owner, folder):
        owner.kill()
    return folder


def rewrite(folder: Path, change: Callable[[Marker], Marker]) -> None:
    marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
    (folder / MARKER).write_bytes(msgspec.json.encode(change(marker)))


def of_owner(**changes: object) -> Callable[[Marker], Marker]:
    replace = msgspec.structs.replace
    return lambda marker: replace(marker, owner=replace(marker.owner, **changes))


def test_a_folder_is_marked_with_its_owner_and_purpose_and_removed_with_its_run() -> None:
    with scratch_folder("a run of ctr") as folder:
        marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
        assert (marker.purpose, marker.owner) == ("a run of ctr", ProcessIdentity.this_process())
        assert marker.owner.pid == os.getpid()
        assert sweep() == []
    assert not folder.exists()


def test_only_what_a_dead_process_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "adabench-notes.txt").touch()
    with living_owner(tmp_path) as (owner, folder):
        assert sweep() == []
        # A process that does nothing is not dead.
        owner.send_signal(signal.SIGSTOP)
        assert sweep() == []
        owner.kill()
    assert abandoned_folders() == [folder]
    assert sweep() == [folder]
    assert [file.name for file in tmp_path.iterdir()] == ["adabench-notes.txt"]


def test_an_identifier_that_is_used_again_is_another_process(abandoned: Path) -> None:
    rewrite(abandoned, of_owner(pid=os.getpid()))
    assert sweep() == [abandoned]


def test_a_process_of_before_the_last_boot_is_gone(abandoned: Path) -> None:
    now = ProcessIdentity.this_process()
    rewrite(abandoned, of_owner(pid=now.pid, started=now.started, boot="an earlier one"))
    assert sweep() == [abandoned]


def test_results_packages_and_clones_are_never_removed(tmp_path: Path, abandoned: Path) -> None:
    session = tmp_path / "adabench-results" / "ctr-1"
    session.mkdir(parents=True)
    (session / "session.json").write_text("{}")
    package = tmp_path / "adabench-mine"
    package.mkdir()
    (package / "pyproject.toml").touch()
    (tmp_path / "adabench-clone" / ".git").mkdir(parents=True)
    (tmp_path / "adabench-empty").mkdir()
    (tmp_path / "adabench-torchrun" / "torchrun").mkdir(parents=True)
    kept = sorted(path for path in tmp_path.rglob("*") if abandoned not in (path, *path.parents))
    assert sweep() == [abandoned]
    assert sorted(tmp_path.rglob("*")) == kept


STRANGE = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "a list": b"[]",
    "another program's": b'{"owner": "us", "purpose": "mine"}',
    "endless": b'{"purpose": "' + b"x" * 100_000,
}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_a_folder_with_a_strange_marker_stays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "adabench-strange").mkdir()
    (tmp_path / "adabench-strange" / MARKER).write_bytes(content)
    assert sweep() == []
    assert (tmp_path / "adabench-strange" / MARKER).read_bytes() == content


CHANGES: dict[str, Callable[[Marker], Marker]] = {
    "another user's": of_owner(user=os.getuid() + 1),
    "another machine's": of_owner(host="another.example"),
    "another container's": of_owner(namespace="pid:[1]"),
    "a living process's": lambda marker: msgspec.structs.replace(
        marker, owner=ProcessIdentity.this_process()
    ),
    "another folder's name": lambda marker: msgspec.structs.replace(marker, name="adabench-other"),
    "another folder's inode": lambda marker: msgspec.structs.replace(marker, inode=marker.inode + 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_marker_that_is_not_of_a_dead_owner_of_this_folder_keeps_it(
    abandoned: Path, change: Callable[[Marker], Marker]
) -> None:
    rewrite(abandoned, change)
    assert sweep() == []
    assert abandoned.is_dir()


def test_copies_renamed_folders_and_links_stay(tmp_path: Path, abandoned: Path) -> None:
    copy = shutil.copytree(abandoned, tmp_path / "adabench-copy")
    renamed = abandoned.rename(tmp_path / "adabench-renamed")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(copy / MARKER, elsewhere / MARKER)
    (tmp_path / "adabench-link").symlink_to(elsewhere)
    (tmp_path / "adabench-linked-marker").mkdir()
    (tmp_path / "adabench-linked-marker" / MARKER).symlink_to(copy / MARKER)
    (tmp_path / "adabench-pipe").mkdir()
    os.mkfifo(tmp_path / "adabench-pipe" / MARKER)
    # A copy with the name of the first folder is still another folder.
    shutil.copytree(copy, abandoned)
    before = sorted(tmp_path.rglob("*"))
    assert sweep() == []
    assert sorted(tmp_path.rglob("*")) == before
    shutil.rmtree(abandoned)
    renamed.rename(abandoned)
    assert sweep() == [abandoned]


def test_what_lies_behind_a_link_in_a_swept_folder_stays(tmp_path: Path, abandoned: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    (abandoned / "tmp").symlink_to(tmp_path / "data")
    assert sweep() == [abandoned]
    assert (tmp_path / "data" / "file").is_file()
