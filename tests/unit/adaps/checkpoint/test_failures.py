"""Failures while a checkpoint is written, and the state that they leave."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaps
from adaps.checkpoint import disk_calls, table_files
from tests.checkpoint_files import content, manifest
from tests.unit.checkpoints import fail_to_write, said_by, table, train, values


def files_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_full_disk_is_said_and_the_previous_checkpoint_stays(small_disk: Path) -> None:
    directory = small_disk / "saved"
    large = adaps.Table("large", rows=12000, length=3, optimizer=adaps.SGD(lr=1.0))  # 20 bytes per row
    with adaps.Node([large]) as node:
        kv = node.worker(0)
        kv.push(np.arange(3000), np.ones((3000, 3), np.float32))
        node.checkpoint(directory)
        before = files_of(directory)
        kv.push(np.arange(12000), np.ones((12000, 3), np.float32))
        said = (
            rf"^rank 0 could not write the checkpoint: {directory}/.*\.safetensors: No space left on device$"
        )
        with pytest.raises(adaps.CheckpointError, match=said):
            node.checkpoint(directory)
        assert files_of(directory) == before
        assert len(list(directory.iterdir())) == 3
    with adaps.Node([large]) as node:
        node.restore(directory)
        out = np.empty((2, 3), np.float32)
        node.worker(0).pull([2999, 3000], out)
        assert out[:, 0].tolist() == [1, 0]


def test_a_file_in_place_of_the_directory_is_the_only_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with adaps.Node([table()]) as node, pytest.raises(adaps.CheckpointError, match="/file: File exists"):
        node.checkpoint(tmp_path / "file")
    assert caplog.text == ""


@pytest.mark.parametrize(
    "call", ["create", "write_at", "sync", "sync_folder", "link", "make_folder", "remove_file"]
)
def test_whichever_call_fails_the_previous_checkpoint_stays(
    saved: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = content(saved, "emb")
    with adaps.Node([table()]) as node:
        node.restore(saved)
        train(node, 4, 1)

        with monkeypatch.context() as patch:
            patch.setattr(disk_calls, call, fail_to_write)
            with pytest.raises(adaps.CheckpointError, match=r"^rank 0 could not .*Input/output error"):
                node.checkpoint(saved)
        after = content(saved, "emb")
        assert np.array_equal(after.values, before.values)
        assert np.array_equal(after.state, before.state)
        train(node, 5, 1)  # the node works on
        node.checkpoint(saved)
        expected = values(node)
        assert len(list(saved.iterdir())) == 3
    assert np.array_equal(content(saved, "emb").values, expected[:20])


def test_a_worker_that_cannot_write_fails_the_others_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = table_files.write_extra

    def fail_for_one(folder: Path, rank: int, worker: int, *rest: Any) -> Any:
        if worker == 1:
            fail_to_write()
        return original(folder, rank, worker, *rest)

    monkeypatch.setattr(table_files, "write_extra", fail_for_one)
    said: dict[int, str | None] = {}
    with adaps.Node([table()], workers=2) as node:

        def write(worker: int) -> None:
            said[worker] = said_by(lambda: node.checkpoint(tmp_path, worker=worker, extra={"worker": worker}))

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(write, range(2)))
    assert said == {
        0: "rank 0 could not write the checkpoint; its exception gives the reason",
        1: "rank 0 could not write the checkpoint: Input/output error",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest-00000001.json", "writer.lock"]
    assert manifest(tmp_path) is None


def test_a_full_disk_of_rows_fails_a_restore_in_one_sentence(tmp_path: Path, small_disk: Path) -> None:
    with adaps.Node([table(rows=2000)]) as node:
        train(node, 0, 1, rows=2000)
        node.checkpoint(tmp_path / "saved")
    limited = table(rows=2000, memory="1KiB", path=small_disk)
    said = "^rank 0 could not overwrite all rows: .*No space left on device"
    with adaps.Node([limited]) as node, pytest.raises(adaps.CheckpointError, match=said):
        node.restore(tmp_path / "saved")
