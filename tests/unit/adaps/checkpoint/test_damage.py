"""Checkpoints with damaged or unreadable files: a restore reports it and changes nothing."""

import contextlib
import errno
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import adaps
from adaps.checkpoint import safetensors_file, table_files
from tests.checkpoint_files import change_manifest, manifest_path, tensors
from tests.unit.checkpoints import LENGTH, ROWS, said_by, table, train, values


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 8)


def assert_refused(saved: Path, sentence: str) -> None:
    """Check that a node that has trained further gets this error and keeps its values."""
    with adaps.Node([table()]) as node:
        train(node, 50, 2)
        before = values(node)
        with pytest.raises(adaps.CheckpointError, match=sentence):
            node.restore(saved)
        assert np.array_equal(values(node), before)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (flip, r"is damaged: state has the checksum [0-9a-f]{8}; the manifest says"),
        (truncate, r"has \d+ bytes; the manifest lists \d+ bytes"),
        (lengthen, r"has \d+ bytes; the manifest lists \d+ bytes"),
        (Path.unlink, "is missing; the manifest lists"),
    ],
)
def test_damaged_files_are_named_and_nothing_is_changed(
    saved: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    (path,) = saved.glob("*/table-*")
    damage(path)
    assert_refused(saved, f"^{path} {sentence}")


def test_a_damaged_manifest_is_named_and_not_replaced(saved: Path) -> None:
    path = manifest_path(saved)
    path.write_bytes(path.read_bytes().replace(b'"rows": 40', b'"rows": 41'))
    with adaps.Node([table()]) as node:
        with pytest.raises(adaps.CheckpointError, match=rf"^{path} is damaged: its checksum is not \d+"):
            node.restore(saved)
        with pytest.raises(adaps.CheckpointError, match=rf"^{path} is damaged: its checksum is not \d+"):
            node.checkpoint(saved)
    assert len(list(saved.glob("*/table-*"))) == 1


def with_rows(path: Path, change: Callable[[npt.NDArray[np.int64]], None]) -> None:
    """Change the numbers of a file's rows, and the checksum that the manifest has of them."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    rows = np.frombuffer(data, np.int64, count=json.loads(data[8:start])["rows"]["shape"][0], offset=start)
    change(rows)
    path.write_bytes(data)
    adjust_checksums(path.parents[1])


@pytest.mark.parametrize(
    ("at", "row", "sentence"),
    [
        (-1, ROWS, f"row {ROWS} does not exist in table 'last': rows are 0 to {ROWS - 1}"),
        (-1, -1, f"row -1 does not exist in table 'last': rows are 0 to {ROWS - 1}"),
        (-1, 0, "row 0 of table 'last' is there twice"),
        (1, 19, "row 19 of table 'last' is there twice"),
    ],
)
def test_bad_rows_whose_checksums_fit_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, row: int, sentence: str
) -> None:
    monkeypatch.setattr(table_files, "CHUNK_BYTES", 7 * 8)  # seven rows
    write_two_tables(tmp_path)
    (path,) = tmp_path.glob("*/table-0001-*")
    with_rows(path, lambda rows: rows.__setitem__(at, row))
    restore_changes_nothing(tmp_path, f"^{path} does not fit: {sentence}$")


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (MemoryError(), "there is not enough memory"),
    ],
    ids=["disk", "memory"],
)
def test_what_fails_behind_all_checks_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, sentence: str
) -> None:
    """The last rows of the last table cannot be read, after they could be when they were verified."""
    write_two_tables(tmp_path)
    original = safetensors_file.Reader.read_into

    def fail_at_last(reader: safetensors_file.Reader, tensor: str, *rest: Any) -> None:
        if reader.path.name.startswith("table-0001-") and tensor == "state":
            raise failure
        original(reader, tensor, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors_file.Reader, "read_into", fail_at_last)
        restore_changes_nothing(tmp_path, f"^rank 0 could not read the checkpoint: {sentence}$")
    with adaps.Node(TWO_TABLES) as node:
        node.restore(tmp_path)
        assert not np.array_equal(everything(node)[:ROWS], everything(node)[ROWS:])


TWO_TABLES = [table(name=name) for name in ("first", "last")]


def everything(node: adaps.Node) -> npt.NDArray[np.float32]:
    out = np.empty((2 * ROWS, LENGTH), np.float32)
    node.worker(0).pull(np.arange(2 * ROWS), out)
    return out


def write_two_tables(directory: Path) -> None:
    with adaps.Node(TWO_TABLES) as node:
        node.worker(0).push_gradients(np.arange(ROWS + 20), np.ones((ROWS + 20, LENGTH), np.float32))
        node.checkpoint(directory)


def restore_changes_nothing(directory: Path, sentence: str) -> None:
    with adaps.Node(TWO_TABLES) as node:
        node.worker(0).push_gradients(np.arange(ROWS), np.full((ROWS, LENGTH), 3, np.float32))
        node.table("first").set_learning_rate(0.75)
        before = everything(node)
        with pytest.raises(adaps.CheckpointError, match=sentence):
            node.restore(directory)
        assert np.array_equal(everything(node), before)
        assert (node.table("first").learning_rate, node.worker(0).current_clock) == (0.75, 0)


def test_a_worker_s_bad_file_changes_nothing(saved: Path) -> None:
    (path,) = saved.glob("*/extra-*")
    path.write_bytes(path.read_bytes().replace(b'{\\"step\\"', b'[\\"step\\"'))
    adjust_checksums(saved)
    assert_refused(saved, f"^{path} has damaged metadata")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda body: body["files"].append(body["files"][0]), "of its 3 files, only 2 have distinct names"),
        (lambda body: body["files"][0].update(rank=1), "belongs to no node or no worker of the job"),
        (lambda body: body["files"][1].update(worker=1), "is of worker 1, and there were 1"),
        (lambda body: body["files"][1].update(worker=None), "belongs to no node or no worker"),
        (lambda body: body.update(world_size=2**50), "it lacks the clocks of 1125899906842624 nodes of 1"),
        (lambda body: body["tables"][0].update(step=2**32), r"<= 4294967295 .*step"),
        (lambda body: body.update(clocks=[[2**62 + 1]]), r"<= 4611686018427387904 .*clocks"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(saved: Path, change: Any, sentence: str) -> None:
    change_manifest(saved, "checkpoint", change)
    with adaps.Node([table()]) as node, pytest.raises(adaps.CheckpointError, match=sentence):
        node.restore(saved)


@pytest.mark.parametrize("honest", [False, True], ids=["checksums as they were", "checksums made to fit"])
def test_whatever_is_in_the_files_a_restore_succeeds_or_says_one_sentence(
    saved: Path, tmp_path: Path, full: bool, honest: bool
) -> None:
    """Random damage; with checksums that fit it, the checks behind them are reached."""
    random_numbers = random.Random(7)
    kept = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    refused = 0
    with adaps.Node([table()]) as node:
        node.restore(saved)
        expected = values(node)
        for _ in range(20_000 if full else 300):
            for path, data in kept.items():
                path.write_bytes(data)
            path = random_numbers.choice(list(kept))
            path.write_bytes(mutated(kept[path], random_numbers))
            if honest:
                adjust_checksums(saved)
            said = said_by(lambda: node.restore(saved))
            if said is None:
                assert honest or np.array_equal(values(node), expected)
            else:
                refused += 1
                assert str(saved) in said
                assert "\n" not in said
    assert refused > (50 if honest else 200)


def mutated(data: bytes, random_numbers: random.Random) -> bytes:
    """One to three changes: bits, bytes, digits, cuts, repeated pieces."""
    result = bytearray(data)
    for _ in range(random_numbers.randint(1, 3)):
        # the header and the manifest's start decide most
        at = random_numbers.randrange(min(len(result), random_numbers.choice([16, 300, len(result)])) or 1)
        kind = random_numbers.randrange(6)
        if kind == 0 and result:
            result[at] ^= 1 << random_numbers.randrange(8)
        elif kind == 1 and result:
            result[at] = random_numbers.choice(b'\x00\xff"{}[]:,-0129aen')
        elif kind == 2:
            digits = [i for i, byte in enumerate(result) if chr(byte).isdigit()]
            if digits:
                result[random_numbers.choice(digits)] = random_numbers.choice(b"0123456789")
        elif kind == 3:
            del result[at:]
        elif kind == 4:
            del result[at : at + random_numbers.randrange(1, 20)]
        else:
            result[at:at] = result[: random_numbers.randrange(1, 40)]
    return bytes(result)


def adjust_checksums(directory: Path) -> None:
    """Give the manifest the true sizes and checksums of its files, where they can be computed."""

    def adjust(body: Any) -> None:
        for file in body["files"]:
            path = directory / body["folder"] / file["name"]
            data = path.read_bytes()
            start = 8 + int.from_bytes(data[:8], "little")
            file["bytes"] = len(data)
            file["checksums"] = {"header": zlib.crc32(data[:start])}
            for name, array in tensors(path).items():
                file["checksums"][name] = zlib.crc32(array.tobytes())

    # Some manifests are too damaged for that.
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OSError):
        change_manifest(directory, "checkpoint", adjust)
