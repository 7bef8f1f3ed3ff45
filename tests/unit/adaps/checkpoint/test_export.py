"""Exports of a cluster of one node: their content, incremental parts, and failures."""

import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import adaps
from adaps.checkpoint import disk_calls, node_files, table_export, table_files
from tests.checkpoint_files import change_manifest, manifest_path
from tests.unit.checkpoints import LENGTH, ROWS, fail_to_write, said_by, table, train, values

Values = npt.NDArray[np.float32]


def exported(directory: Path) -> dict[str, Any]:
    """The content of the newest manifest."""
    body: dict[str, Any] = json.loads(manifest_path(directory).read_text())["export"]
    return body


def rows_of_parts(directory: Path) -> list[int]:
    return [sum(file["rows"] for file in part["files"]) for part in exported(directory)["parts"]]


def same_bits(one: Values, other: Values) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def push(node: adaps.Node, *rows: int) -> None:
    node.worker(0).push(np.array(rows), np.ones((len(rows), LENGTH), np.float32))
    node.worker(0).advance_clock()


# Content and reading


def test_an_export_holds_every_row_and_what_follows_only_what_changed(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        train(node, 0, 3)  # half of the rows; the others were never touched
        node.export(tmp_path / "saved").wait()
        assert same_bits(adaps.load_export(tmp_path / "saved")["emb"], values(node))
        push(node, 1, 39)
        node.export(tmp_path / "saved").wait()
        push(node, 39, 7)
        values(node)  # reading changes nothing
        node.export(tmp_path / "saved").wait()
        node.export(tmp_path / "saved").wait()
        assert rows_of_parts(tmp_path / "saved") == [40, 2, 2, 0]
        assert [part["clocks"] for part in exported(tmp_path / "saved")["parts"]] == [
            [[3]],
            [[4]],
            [[5]],
            [[5]],
        ]
        node.export(tmp_path / "full").wait()
        assert rows_of_parts(tmp_path / "full") == [40]
        merged, full = (adaps.load_export(tmp_path / name)["emb"] for name in ("saved", "full"))
        assert same_bits(merged, full)
        assert same_bits(merged, values(node))


def test_all_rows_are_written_again_when_changes_are_as_much(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        parts = []
        for _ in range(6):
            push(node, *range(30))
            node.export(tmp_path).wait()
            parts.append(rows_of_parts(tmp_path))
            assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))
            folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
            assert folders == {part["folder"] for part in exported(tmp_path)["parts"]}
    assert parts == [[40], [40, 30], [40, 30, 30], [40], [40, 30], [40, 30, 30]]
    assert exported(tmp_path)["sequence"] == 6


def test_every_way_to_change_a_row_is_noticed(tmp_path: Path) -> None:
    with adaps.Node([table(adaps.Adam(lr=0.1))]) as node:
        kv = node.worker(0)
        node.export(tmp_path).wait()
        kv.set([1], np.ones(LENGTH, np.float32))
        kv.push_gradients([2], np.ones((1, LENGTH), np.float32))
        kv.push([3], np.ones((1, LENGTH), np.float32))
        node.export(tmp_path).wait()
        assert rows_of_parts(tmp_path) == [40, 3]
        node.checkpoint(tmp_path / "saved")
        push(node, 2, 5)
        node.restore(tmp_path / "saved")  # rows 1, 2 and 3 belong to the checkpoint, row 5 does not
        node.export(tmp_path).wait()
        assert rows_of_parts(tmp_path) == [40, 3, 4]
        assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))


MOVING_IDLE_ROWS = [
    adaps.SGD(lr=0.1, momentum=0.9),
    adaps.SGD(lr=0.1, weight_decay=0.01),
    adaps.Adam(lr=0.1, weight_decay=0.01),
    adaps.AdamW(lr=0.1, weight_decay=0.1),
]


@pytest.mark.parametrize("optimizer", MOVING_IDLE_ROWS, ids=repr)
def test_rows_that_missed_steps_have_made_up_for_them_in_an_export(tmp_path: Path, optimizer: Any) -> None:
    with adaps.Node([table(optimizer)]) as node:
        kv, placed = node.worker(0), node.table("emb")
        placed.set_step(1)
        kv.push_gradients(np.arange(30), np.ones((30, LENGTH), np.float32))
        for step in range(2, 9):
            placed.set_step(step)
            kv.push_gradients([step], np.ones((1, LENGTH), np.float32))
        stored = values(node)
        node.export(tmp_path).wait()
        node.export(tmp_path).wait()
        moved = values(node)
        assert not same_bits(stored, moved)
        placed.catch_up()
        assert same_bits(moved, values(node))
        assert same_bits(adaps.load_export(tmp_path)["emb"], moved)
        assert rows_of_parts(tmp_path) == [40, 0]  # without a step nothing changes
        placed.set_step(9)
        kv.push_gradients([9], np.ones((1, LENGTH), np.float32))
        node.export(tmp_path).wait()
        assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))
        assert rows_of_parts(tmp_path)[2] >= 30


def test_rows_whose_steps_have_no_numbers_are_exported_as_they_are(tmp_path: Path) -> None:
    with adaps.Node([table(MOVING_IDLE_ROWS[0])]) as node:
        train(node, 0, 3)
        node.export(tmp_path).wait()
        push(node, 1)
        node.export(tmp_path).wait()
        assert rows_of_parts(tmp_path) == [40, 1]
        assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))


def test_tables_can_be_chosen(tmp_path: Path) -> None:
    tables = [table(name=name, length=length) for name, length in [("a", 2), ("b", 5), ("c", 3)]]
    with adaps.Node(tables) as node:
        node.worker(0).push(node.table("c").keys([4]), np.ones((1, 3), np.float32))
        node.export(tmp_path, tables=["c", "a"]).wait()
    found = adaps.load_export(tmp_path)
    assert {name: array.shape for name, array in found.items()} == {"a": (ROWS, 2), "c": (ROWS, 3)}
    assert list(adaps.load_export(tmp_path, ["c"])) == ["c"]
    assert same_bits(adaps.load_export(tmp_path, ["c"])["c"], found["c"])
    with pytest.raises(KeyError, match="no table 'd'; there are a, c"):
        adaps.load_export(tmp_path, ["d"])


def test_workers_that_choose_different_tables_are_refused(tmp_path: Path) -> None:
    with adaps.Node([table(), table(name="other")], workers=2) as node:

        def export(worker: int) -> str | None:
            return said_by(lambda: node.export(tmp_path, tables=["emb", "other"][worker:], worker=worker))

        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(export, range(2))
    assert first == "rank 0 could not join the export of rank 0; its exception gives the reason"
    assert second == "rank 0 exports 'emb', 'other', and this worker 'other': give all the same tables"


def test_large_tables_are_written_and_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK_BYTES", 7 * 20)  # seven rows of 8 + 12 bytes
    with adaps.Node([table()]) as node:
        train(node, 0, 3)
        node.export(tmp_path).wait()
        assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))


def test_workers_write_on_while_an_export_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are begun only after further changes, which are not in them."""
    changed = threading.Event()
    original = table_files.write_changed

    def late(*arguments: Any) -> Any:
        assert changed.wait(60)
        return original(*arguments)

    monkeypatch.setattr(table_files, "write_changed", late)
    with adaps.Node([table()]) as node:
        train(node, 0, 3)
        cut = values(node)
        export = node.export(tmp_path)
        push(node, *range(ROWS))
        assert not export.done
        changed.set()
        export.wait()
        assert export.done
        assert same_bits(adaps.load_export(tmp_path)["emb"], cut)
        node.export(tmp_path).wait()
        assert rows_of_parts(tmp_path) == [40, 40]
        assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))


def test_the_end_of_a_node_waits_for_its_export(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        train(node, 0, 3)
        node.export(tmp_path)
        expected = values(node)
    assert same_bits(adaps.load_export(tmp_path)["emb"], expected)


def test_every_worker_takes_part_and_gets_the_same_export(tmp_path: Path) -> None:
    exports: dict[int, adaps.checkpoint.Export] = {}
    with adaps.Node([table(optimizer=adaps.SGD(lr=1.0), init=adaps.Constant(0))], workers=3) as node:

        def work(worker: int) -> None:
            kv = node.worker(worker)
            for _ in range(worker):
                kv.advance_clock()
            kv.push(np.arange(ROWS), np.full((ROWS, LENGTH), 2.0**worker, np.float32), asynchronous=True)
            exports[worker] = node.export(tmp_path, worker=worker)
            kv.push(np.arange(ROWS), np.full((ROWS, LENGTH), 100, np.float32))
            exports[worker].wait()

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(work, range(3)))
    assert len(set(map(id, exports.values()))) == 1
    assert exported(tmp_path)["parts"][0]["clocks"] == [[0, 1, 2]]
    assert np.array_equal(adaps.load_export(tmp_path)["emb"], np.full((ROWS, LENGTH), 7, np.float32))


def test_the_next_life_of_a_job_begins_with_all_rows(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        train(node, 0, 3)
        node.export(tmp_path).wait()
        push(node, 3)
        node.export(tmp_path).wait()
        node.checkpoint(tmp_path / "saved")
        before = adaps.load_export(tmp_path)["emb"]
    with adaps.Node([table()]) as node:
        node.restore(tmp_path / "saved")
        push(node, 4)
        assert same_bits(adaps.load_export(tmp_path)["emb"], before)
        node.export(tmp_path).wait()
        assert rows_of_parts(tmp_path) == [40]
        assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))
    assert exported(tmp_path)["sequence"] == 3


@pytest.mark.parametrize("replaced_by", ["nothing", "an older copy"])
def test_all_rows_are_exported_if_the_directory_was_replaced(tmp_path: Path, replaced_by: str) -> None:
    saved, older = tmp_path / "saved", tmp_path / "older"
    with adaps.Node([table()]) as node:
        train(node, 0, 3)
        node.export(saved).wait()
        if replaced_by == "an older copy":
            shutil.copytree(saved, older)
        push(node, 7)
        node.export(saved).wait()
        saved.rename(tmp_path / "moved away")
        if replaced_by == "an older copy":
            older.rename(saved)
        for row, parts in (8, [40]), (9, [40, 1]):
            push(node, row)
            node.export(saved).wait()
            assert rows_of_parts(saved) == parts
            assert same_bits(adaps.load_export(saved)["emb"], values(node))


@pytest.mark.parametrize("call", ["create", "write_at", "sync", "sync_folder", "link", "make_folder"])
@pytest.mark.parametrize("begun", [False, True], ids=["first", "later"])
def test_whichever_call_fails_the_export_before_stays_and_the_next_makes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, begun: bool
) -> None:
    if not begun:
        with adaps.Node([table()]) as node:
            node.export(tmp_path).wait()
    with adaps.Node([table()]) as node:
        train(node, 0, 3)
        if begun:
            node.export(tmp_path).wait()
        before = adaps.load_export(tmp_path)["emb"]
        push(node, 4)

        with monkeypatch.context() as patch:
            patch.setattr(disk_calls, call, fail_to_write)
            with pytest.raises(adaps.CheckpointError, match=r"^rank 0 could not .*Input/output error"):
                node.export(tmp_path).wait()
        assert same_bits(adaps.load_export(tmp_path)["emb"], before)
        push(node, 5)
        node.export(tmp_path).wait()
        assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))
        assert rows_of_parts(tmp_path) == ([40, 2] if begun else [40])
    assert "which was not completed" not in caplog.text


def test_a_full_disk_is_said_and_the_export_before_stays(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = small_disk / "saved"
    large = adaps.Table("large", rows=8000, length=3)  # 20 bytes per row
    with adaps.Node([large]) as node:
        kv = node.worker(0)
        node.export(directory).wait()
        kv.push(np.arange(6000), np.ones((6000, 3), np.float32))
        export = node.export(directory)
        said = r"^rank 0 could not write the export: .*\.safetensors: No space left on device$"
        with pytest.raises(adaps.CheckpointError, match=said):
            export.wait()
        assert f"the export to {directory} was not completed: rank 0 could not write" in caplog.text
        assert not adaps.load_export(directory)["large"].any()
        assert len(list(directory.iterdir())) == 3  # manifest, lock, and the folder of the first one
        kv.push(np.arange(2), np.ones((2, 3), np.float32))
        with pytest.raises(adaps.CheckpointError, match="No space left"):
            node.export(directory).wait()  # changes that were not exported are exported later


def test_a_failure_that_names_a_path_of_any_bytes_reaches_the_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "adaps")  # pytest-xdist cannot send such a path in a report
    directory = tmp_path / os.fsdecode(b"\xff")

    def fail(path: Path) -> int:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with adaps.Node([table()]) as node:
        node.export(directory).wait()
        with monkeypatch.context() as patch:
            patch.setattr(disk_calls, "create", fail)
            push(node, 1)
            export = node.export(directory)
            with pytest.raises(adaps.CheckpointError, match=r"^rank 0 could not write the export"):
                export.wait()
        assert str(tmp_path).encode() in (node.posted("export/0") or "").encode()


def test_without_memory_for_the_copies_nothing_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(*arguments: Any) -> None:
        raise MemoryError

    with adaps.Node([table()]) as node:
        with monkeypatch.context() as patch:
            patch.setattr(table_export.Exporter, "_copy", copy)
            with pytest.raises(adaps.CheckpointError, match="could not copy the rows: there is not enough"):
                node.export(tmp_path)
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
        node.export(tmp_path).wait()
    assert adaps.load_export(tmp_path)["emb"].shape == (ROWS, LENGTH)


def test_a_mistake_of_the_writing_thread_is_told_and_the_node_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("odd")

    with adaps.Node([table()]) as node:
        with monkeypatch.context() as patch:
            patch.setattr(table_files, "write_changed", fail)
            with pytest.raises(
                adaps.CheckpointError, match="could not write the export: ZeroDivisionError: odd"
            ):
                node.export(tmp_path).wait()
        node.export(tmp_path).wait()


# Refusals


def test_what_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with adaps.Node([table()]) as node:
        with pytest.raises(adaps.CheckpointError, match=rf"{tmp_path}/file cannot be read: Not a directory"):
            node.export(tmp_path / "file")
        push(node, 1)
        node.export(tmp_path / "right").wait()


def test_tables_that_do_not_exist_are_named(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        with pytest.raises(KeyError, match=r"no table 'em' \(did you mean 'emb'\?\); there are emb"):
            node.export(tmp_path, tables=["em"])
        refused: list[Sequence[str]] = ["emb", []]
        for wrong in refused:
            said = f"tables is {wrong!r}".replace("[", r"\[")
            with pytest.raises(TypeError, match=said):
                node.export(tmp_path, tables=wrong)
            with pytest.raises(TypeError, match=said):
                adaps.load_export(tmp_path, tables=wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"rows": ROWS + 1}, r"'emb' \(41 rows of 3\)"),
        ({"length": 4}, r"'emb' \(40 rows of 4\)"),
        ({"name": "other"}, r"'other' \(40 rows of 3\)"),
    ],
)
def test_exports_of_other_tables_stay(tmp_path: Path, changes: dict[str, Any], differs: str) -> None:
    with adaps.Node([table()]) as node:
        node.export(tmp_path).wait()
    said = (
        rf"^{tmp_path}/manifest-00000002.json is of an export of 'emb' \(40 rows of 3\), and this one is of "
    )
    with adaps.Node([table(**changes)]) as node, pytest.raises(adaps.CheckpointError, match=said + differs):
        node.export(tmp_path)
    assert adaps.load_export(tmp_path)["emb"].shape == (ROWS, LENGTH)


def test_checkpoints_and_exports_do_not_share_a_directory(saved: Path, tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        node.export(tmp_path / "exports").wait()
        assert said_by(lambda: node.export(saved)) == (
            f"{saved}/manifest-00000002.json has the format 'adaps checkpoint, version 2'; this version "
            "reads 'adaps export, version 1'"
        )
        assert "has the format 'adaps export, version 1'" in str(
            said_by(lambda: node.restore(tmp_path / "exports"))
        )
        node.export(tmp_path / "exports").wait()
    with adaps.Node([table()]) as node:
        assert "has the format" in str(said_by(lambda: node.checkpoint(tmp_path / "exports")))
        node.restore(saved)
        node.export(tmp_path / "exports").wait()
        assert "has the format" in str(said_by(lambda: node.checkpoint(tmp_path / "exports")))
        node.export(tmp_path / "exports").wait()
    assert "has the format" in str(said_by(lambda: adaps.load_export(saved)))
    assert adaps.load_export(tmp_path / "exports")["emb"].shape == (ROWS, LENGTH)


def test_a_failed_export_keeps_no_memory(saved: Path) -> None:
    with adaps.Node([table()]) as node:
        for _ in range(2):
            said_by(lambda: node.export(saved))
            assert node._exports is not None
            assert node._exports.targets == {}


def test_changes_are_not_published_if_the_directory_was_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = node_files.collect

    def replace(*arguments: Any) -> Any:
        collected = original(*arguments)
        for path in tmp_path.glob("manifest-*"):
            path.unlink()
        return collected

    with adaps.Node([table()]) as node:
        node.export(tmp_path).wait()
        push(node, 3)
        with monkeypatch.context() as patch:
            patch.setattr(node_files, "collect", replace)
            assert f"{tmp_path} was replaced" in str(said_by(lambda: node.export(tmp_path).wait()))
        node.export(tmp_path).wait()
        assert rows_of_parts(tmp_path) == [40]
        assert same_bits(adaps.load_export(tmp_path)["emb"], values(node))


def test_an_export_is_written_by_its_caller_if_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with adaps.Node([table()]) as node:
        monkeypatch.setattr(threading.Thread, "start", refused)
        export = node.export(tmp_path)
        assert export.done
        export.wait()
    assert adaps.load_export(tmp_path)["emb"].shape == (ROWS, LENGTH)


def test_without_an_export_the_sentence_says_so(tmp_path: Path) -> None:
    assert said_by(lambda: adaps.load_export(tmp_path / "nothing")) == (
        f"{tmp_path / 'nothing'} holds no complete export, because it has no manifest: give a directory to "
        "which `export` has written"
    )


def test_damage_is_named(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        node.export(tmp_path).wait()
    (path,) = tmp_path.glob("*/table-*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert f"{path} is damaged: values has the checksum" in str(said_by(lambda: adaps.load_export(tmp_path)))
    path.unlink()
    assert f"{path} is missing" in str(said_by(lambda: adaps.load_export(tmp_path)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda export: export["parts"][0]["files"].clear(), "does not have row 0 of table 'emb'"),
        (lambda export: export["parts"].clear(), "is not the manifest of an export: of its 0 parts"),
        (lambda export: export["parts"].append(export["parts"][0]), "of its 2 parts, only 1"),
        (lambda export: export["tables"].append(export["tables"][0]), "of its 2 tables, only 1"),
        (lambda export: export["tables"].clear(), "rows of 'emb', which is not one of its tables"),
        (lambda export: export["tables"][0].update(rows=2**62), "no memory for table 'emb'"),
        (lambda export: export["tables"][0].update(length=4), "where the table 'emb' needs"),
        (lambda export: export["tables"][0].update(length=2**40), "Expected `int` <= 16777200"),
        (lambda export: export["tables"][0].update(rows=39), "row 39 does not exist in table 'emb'"),
        (lambda export: export["parts"][0].update(folder="../x"), "is not the manifest of an export"),
    ],
)
def test_manifests_that_do_not_fit_are_refused(tmp_path: Path, change: Any, sentence: str) -> None:
    with adaps.Node([table()]) as node:
        node.export(tmp_path).wait()
    change_manifest(tmp_path, "export", change)
    assert sentence in str(said_by(lambda: adaps.load_export(tmp_path)))


def test_a_reader_goes_on_with_the_export_that_replaces_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with adaps.Node([table()]) as node:
        node.export(tmp_path).wait()
    original = table_files.merge

    def replaced(*arguments: Any) -> None:
        monkeypatch.setattr(table_files, "merge", original)
        with adaps.Node([table()]) as node:
            push(node, 3)
            node.export(tmp_path).wait()
            expected.append(values(node))
        original(*arguments)

    expected: list[Values] = []
    monkeypatch.setattr(table_files, "merge", replaced)
    found = adaps.load_export(tmp_path)["emb"]
    assert same_bits(found, expected[0])
