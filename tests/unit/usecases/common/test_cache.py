"""Files are read again when their content changes, whatever their time stamps are."""

import os
from pathlib import Path

import pytest

from adabench.usecases.common.cache import CACHE_VARIABLE, read_once
from adabench.usecases.interface import DataError


def read(path: Path) -> str:
    """The content of a file by way of the cache."""

    def build(folder: Path) -> None:
        (folder / "copy").write_bytes(path.read_bytes())

    def open_folder(folder: Path) -> str | None:
        return (folder / "copy").read_text() if (folder / "copy").is_file() else None

    return read_once("copy", [path], build, open_folder)


@pytest.mark.parametrize("how", ["rewritten", "moved there"])
def test_a_file_of_equal_size_and_time_is_read_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "data"
    path.write_text("old")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    assert read(path) == "old"
    changed = path if how == "rewritten" else tmp_path / "other"
    changed.write_text("new")
    os.utime(changed, ns=times)
    changed.replace(path)
    assert path.stat().st_mtime_ns == times[1]
    assert read(path) == "new"


def test_content_that_is_known_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    path.write_text("same")
    assert read(path) == "same"
    os.utime(path, ns=(0, 0))
    monkeypatch.setattr("adabench.usecases.common.cache._build", lambda *_: pytest.fail("read again"))
    assert read(path) == "same"


def test_a_digest_is_remembered_once_the_file_is_older_than_the_clock_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    path.write_text("same")
    monkeypatch.setattr("adabench.usecases.common.cache._CLOCK_RESOLUTION_NS", -(10**18))
    assert read(path) == "same"
    monkeypatch.setattr("adabench.usecases.common.cache.file_digest", lambda _: pytest.fail("read again"))
    assert read(path) == "same"


@pytest.mark.parametrize("damaged", [b'{"\xff": 1}', b"[" * 100_000, b"{"], ids=["encoding", "depth", "end"])
def test_damaged_cache_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bytes
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "data"
    path.write_text("same")
    assert read(path) == "same"
    (known,) = (tmp_path / "cache").rglob("contents.json")
    known.write_bytes(damaged)
    assert read(path) == "same"
    assert known.read_bytes() != damaged


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("old")

    def build(folder: Path) -> None:
        path.write_text("newer")

    with pytest.raises(DataError, match="data changed while it was read: start again when it is complete"):
        read_once("copy", [path], build, lambda folder: folder if folder.is_dir() else None)
