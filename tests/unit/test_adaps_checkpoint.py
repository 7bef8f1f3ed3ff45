"""Checkpoints of a cluster of one: what they hold, what a restore gives back, and what it refuses."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import adaps
from adaps import _contents, _disk, checkpoint

from ..checkpoint_files import content, manifest, manifest_path, tensors

ROWS, LENGTH = 40, 3
OPTIMIZERS = [
    adaps.SGD(lr=0.1),
    adaps.SGD(lr=0.1, momentum=0.9),
    adaps.Adagrad(lr=0.1),
    adaps.RowAdagrad(lr=0.1),
    adaps.Adam(lr=0.1),
    adaps.SparseAdam(lr=0.1),
]
INIT = adaps.Uniform(-1.0, 1.0, seed=5)


def table(optimizer: Any = OPTIMIZERS[2], **changes: Any) -> adaps.Table:
    given = {"name": "emb", "rows": ROWS, "length": LENGTH, "optimizer": optimizer, "init": INIT, **changes}
    return adaps.Table(**given)


def train(node: adaps.Node, first: int, steps: int, rows: int = ROWS // 2) -> None:
    """Random gradients of the first `rows` rows, the same for the same steps."""
    for step in range(first, first + steps):
        gradients = np.random.default_rng(step).standard_normal((rows, LENGTH)).astype(np.float32)
        node.worker(0).push_gradients(np.arange(rows), gradients)
        node.worker(0).advance_clock()


def values(node: adaps.Node) -> npt.NDArray[np.float32]:
    out = np.empty((ROWS, LENGTH), np.float32)
    node.worker(0).pull(np.arange(ROWS), out)
    return out


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The directory of a checkpoint after four steps."""
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        node.checkpoint(tmp_path / "saved", extra={"step": 4})
    return tmp_path / "saved"


# What is written, and what comes back


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: str(optimizer).partition("(")[0])
def test_training_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path, optimizer: Any) -> None:
    with adaps.Node([table(optimizer)]) as node:
        train(node, 0, 5)
        node.checkpoint(tmp_path)
        train(node, 5, 5)
        expected = values(node)
    with adaps.Node([table(optimizer)]) as node:
        node.restore(tmp_path)
        assert node.worker(0).current_clock == 5
        train(node, 5, 5)
        assert np.array_equal(values(node), expected)


def test_the_files_are_safetensors_with_the_touched_rows_only(saved: Path) -> None:
    found = content(saved, "emb")
    assert found.rows.tolist() == list(range(ROWS // 2))
    assert (found.values.shape, found.state.shape) == ((20, 3), (20, 3))
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        assert np.array_equal(found.values, values(node)[: ROWS // 2])
    squares = sum(
        np.random.default_rng(step).standard_normal((20, 3)).astype(np.float32) ** 2 for step in range(4)
    )
    assert np.allclose(found.state, squares, rtol=1e-6)


def test_large_tables_are_written_and_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_contents, "CHUNK_BYTES", 7 * 32)  # seven rows of 8 + 12 + 12 bytes
    with adaps.Node([table()]) as node:
        train(node, 0, 3)
        node.checkpoint(tmp_path)
        expected = values(node)
    with adaps.Node([table()]) as node:
        node.restore(tmp_path)
        assert np.array_equal(values(node), expected)


def test_a_restore_overwrites_what_came_since(saved: Path) -> None:
    with adaps.Node([table()]) as node:
        untouched = values(node)
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        expected = values(node)
        train(node, 4, 3, rows=ROWS)  # rows that the checkpoint does not have, too
        node.restore(saved)
        assert np.array_equal(values(node), expected)
        assert np.array_equal(values(node)[20:], untouched[20:])
        node.checkpoint(saved)
    assert not content(saved, "emb").state[20:].any()


def test_learning_rates_and_steps_come_back(tmp_path: Path) -> None:
    with adaps.Node([table(adaps.Adam(lr=0.5))]) as node:
        node.table("emb").set_learning_rate(0.25)
        node.table("emb").set_step(17)
        node.checkpoint(tmp_path)
    with adaps.Node([table(adaps.Adam(lr=0.75))]) as node:  # the rate may differ
        node.restore(tmp_path)
        assert node.table("emb").learning_rate == 0.25
        assert node.table("emb").step == 17


def test_a_worker_gets_back_what_it_gave(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "generator": np.arange(7, dtype=np.uint8),
        "empty": np.empty((0, 3), np.float32),
        "matrix": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "flags": np.array([True, False]),
        "epoch": 3,
        "name": "ctr — ½",
        "nested": {"rates": [0.1, 0.2], "none": None},
    }
    with adaps.Node([table()]) as node:
        node.checkpoint(tmp_path, extra=given)
        restored = node.restore(tmp_path)
    assert restored.same_workers
    assert restored.shares == 1
    assert restored.extra.keys() == given.keys()
    for name, value in given.items():
        assert np.array_equal(restored.extra[name], value)
        assert type(restored.extra[name]) is type(value)


@pytest.mark.parametrize("value", [object(), float("nan"), np.array(["text"]), np.array([1 + 2j])])
def test_what_no_format_holds_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    with adaps.Node([table()]) as node, pytest.raises(TypeError, match=r"extra\['odd'\] is a"):
        node.checkpoint(tmp_path, extra={"odd": value})
    assert list(tmp_path.iterdir()) == []


def test_the_next_checkpoint_takes_the_place_of_the_last(saved: Path) -> None:
    with adaps.Node([table()]) as node:
        node.restore(saved)
        for step in range(3):
            train(node, 4 + step, 1)
            node.checkpoint(saved)
        expected = values(node)
    assert len(list(saved.iterdir())) == 3
    assert (saved / manifest(saved)["folder"]).is_dir()
    assert (saved / "writer.lock").exists()
    assert manifest(saved)["sequence"] == 4
    assert np.array_equal(content(saved, "emb").values, expected[:20])


def test_every_worker_takes_part_and_gets_its_own(tmp_path: Path) -> None:
    def on_threads(work: Callable[[adaps.Node, int], Any]) -> list[Any]:
        results: dict[int, Any] = {}
        with adaps.Node([table()], workers=3) as node:
            threads = [
                threading.Thread(target=lambda i=i: results.update({i: work(node, i)})) for i in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return [results[i] for i in range(3)]

    def write(node: adaps.Node, worker: int) -> None:
        kv = node.worker(worker)
        for _ in range(worker):
            kv.advance_clock()
        kv.push(np.arange(ROWS), np.full((ROWS, LENGTH), 2.0**worker, np.float32))
        node.checkpoint(tmp_path, worker=worker, extra={"worker": worker})
        kv.push(np.arange(ROWS), np.full((ROWS, LENGTH), 100, np.float32))

    def read(node: adaps.Node, worker: int) -> tuple[Any, int, float]:
        restored = node.restore(tmp_path, worker=worker)
        out = np.empty((1, LENGTH), np.float32)
        node.worker(worker).pull([7], out)
        return restored.extra["worker"], node.worker(worker).current_clock, float(out[0, 0])

    with adaps.Node([table()]) as node:
        start = float(values(node)[7, 0])
    on_threads(write)
    expected = float(np.float32(start) + np.float32(7))
    for worker, result in enumerate(on_threads(read)):
        assert result == (worker, worker, pytest.approx(expected, abs=1e-6))
    with adaps.Node([table()]) as node:  # another number of workers
        restored = node.restore(tmp_path)
        assert (restored.extra, restored.same_workers, restored.shares) == ({"worker": 0}, False, 3)
        assert node.worker(0).current_clock == 2


def test_a_directory_of_version_1_is_read_and_goes_on_as_version_2(saved: Path) -> None:
    body = manifest(saved)
    manifest_path(saved).unlink()
    (saved / "writer.lock").unlink()
    old = {"format": "adaps checkpoint, version 1", "crc32": checksum(body), "checkpoint": body}
    (saved / "manifest.json").write_text(json.dumps(old, indent=1))
    assert checkpoint.exists(saved)
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        expected = values(node)
    with adaps.Node([table()]) as node:
        assert node.restore(saved).extra == {"step": 4}
        assert np.array_equal(values(node), expected)
        node.checkpoint(saved)
    assert manifest(saved)["sequence"] == 2
    assert not (saved / "manifest.json").exists()
    assert len(list(saved.iterdir())) == 3


def test_whether_there_is_a_checkpoint_can_be_asked(saved: Path, tmp_path: Path) -> None:
    assert checkpoint.exists(saved)
    assert not checkpoint.exists(str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    assert not checkpoint.exists(tmp_path / "empty")


# What is refused


def test_without_a_checkpoint_the_sentence_says_so(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node, pytest.raises(adaps.CheckpointError) as refusal:
        node.restore(tmp_path / "nothing")
    assert str(refusal.value) == (
        f"{tmp_path / 'nothing'} holds no complete checkpoint: there is no manifest of one"
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "emp"}, "has the table 'emb', which this node does not have"),
        ({"rows": ROWS + 1}, "has rows 40 in the checkpoint, but 41 on this node"),
        ({"length": 4}, "has length 3 in the checkpoint, but 4 on this node"),
        ({"optimizer": adaps.Adam()}, r"has optimizer Adagrad\(.*\) in the checkpoint, but Adam\("),
        ({"optimizer": adaps.Adagrad(eps=1e-3)}, r"eps=1e-10.*\) in the checkpoint, but .*eps=0.001"),
        ({"init": adaps.Uniform(-1, 1, seed=6)}, r"has init Uniform\(.*seed=5\) .*, but .*seed=6\)"),
    ],
)
def test_tables_that_differ_are_named(saved: Path, changes: Any, sentence: str) -> None:
    with adaps.Node([table(**changes)]) as node:
        train_rows = np.arange(5)
        before = np.empty((5, node.table(changes.get("name", "emb")).length), np.float32)
        node.worker(0).pull(train_rows, before)
        with pytest.raises(adaps.CheckpointError, match=f"^{saved}/manifest-00000002.json.*{sentence}"):
            node.restore(saved)
        after = np.empty_like(before)
        node.worker(0).pull(train_rows, after)
        assert np.array_equal(before, after)


def test_a_table_more_is_named(saved: Path) -> None:
    with (
        adaps.Node([table(), table(name="more")]) as node,
        pytest.raises(adaps.CheckpointError, match="has no table 'more'; it has 'emb'"),
    ):
        node.restore(saved)


def test_another_initializer_does_not_matter_where_every_row_was_written(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        expected = values(node)
        node.checkpoint(tmp_path)
    with adaps.Node([table(init=adaps.Constant(3))]) as node:
        node.restore(tmp_path)
        assert np.array_equal(values(node), expected)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 8)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (flip, r"is damaged: state has the checksum [0-9a-f]{8}; the checkpoint's manifest says"),
        (truncate, r"has \d+ bytes; the checkpoint's manifest tells of \d+ bytes"),
        (lengthen, r"has \d+ bytes; the checkpoint's manifest tells of \d+ bytes"),
        (Path.unlink, "is missing; the checkpoint's manifest tells of"),
    ],
)
def test_damaged_files_are_named_and_nothing_is_changed(
    saved: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    (path,) = saved.glob("*/table-*")
    damage(path)
    with adaps.Node([table()]) as node:
        train(node, 50, 2)
        before = values(node)
        with pytest.raises(adaps.CheckpointError, match=f"^{path} {sentence}"):
            node.restore(saved)
        assert np.array_equal(values(node), before)


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
    tables = [table(name=name) for name in ("first", "last")]

    def everything(node: adaps.Node) -> npt.NDArray[np.float32]:
        out = np.empty((2 * ROWS, LENGTH), np.float32)
        node.worker(0).pull(np.arange(2 * ROWS), out)
        return out

    monkeypatch.setattr(_contents, "CHUNK_BYTES", 7 * 8)  # seven rows
    with adaps.Node(tables) as node:
        node.worker(0).push_gradients(np.arange(ROWS + 20), np.ones((ROWS + 20, LENGTH), np.float32))
        node.checkpoint(tmp_path)
    (path,) = tmp_path.glob("*/table-0001-*")
    with_rows(path, lambda rows: rows.__setitem__(at, row))
    with adaps.Node(tables) as node:
        node.worker(0).push_gradients(np.arange(ROWS), np.full((ROWS, LENGTH), 3, np.float32))
        node.table("first").set_learning_rate(0.75)
        before = everything(node)
        with pytest.raises(adaps.CheckpointError, match=f"^{path} does not fit: {sentence}$"):
            node.restore(tmp_path)
        assert np.array_equal(everything(node), before)
        assert (node.table("first").learning_rate, node.worker(0).current_clock) == (0.75, 0)


def test_a_worker_s_bad_file_changes_nothing(saved: Path) -> None:
    (path,) = saved.glob("*/extra-*")
    path.write_bytes(path.read_bytes().replace(b'{\\"step\\"', b'[\\"step\\"'))
    adjust_checksums(saved)
    with adaps.Node([table()]) as node:
        train(node, 50, 2)
        before = values(node)
        with pytest.raises(adaps.CheckpointError, match=f"^{path} has damaged metadata"):
            node.restore(saved)
        assert np.array_equal(values(node), before)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda body: body["files"].append(body["files"][0]),
            "of its 3 files, only 2 have names of their own",
        ),
        (lambda body: body["files"][0].update(rank=1), "is of no node, or of no worker, that wrote it"),
        (lambda body: body["files"][1].update(worker=1), "is of worker 1, and there were 1"),
        (lambda body: body["files"][1].update(worker=None), "is of no node, or of no worker"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(saved: Path, change: Any, sentence: str) -> None:
    whole = json.loads(manifest_path(saved).read_bytes())
    change(whole["checkpoint"])
    whole["crc32"] = checksum({name: whole[name] for name in ("checkpoint", "writer")})
    manifest_path(saved).write_text(json.dumps(whole))
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


def said_by(call: Callable[[], object]) -> str | None:
    """The sentence that a refusal consists of; None without one."""
    try:
        call()
    except adaps.CheckpointError as error:
        return str(error)
    return None


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
    """Give the manifest the sizes and checksums that its files have, as far as they can be told."""
    try:
        whole = json.loads(manifest_path(directory).read_bytes())
        body = whole["checkpoint"]
        for file in body["files"]:
            path = directory / body["folder"] / file["name"]
            data = path.read_bytes()
            start = 8 + int.from_bytes(data[:8], "little")
            file["bytes"] = len(data)
            file["checksums"] = {"header": zlib.crc32(data[:start])}
            for name, array in tensors(path).items():
                file["checksums"][name] = zlib.crc32(array.tobytes())
        whole["crc32"] = checksum({name: whole[name] for name in ("checkpoint", "writer")})
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return  # too damaged for that
    manifest_path(directory).write_text(json.dumps(whole))


def checksum(content: Any) -> int:
    """What a manifest says of itself."""
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def files_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# What goes wrong while writing


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

        def fail(*arguments: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(_disk, call, fail)
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
    original = _contents.write_extra

    def fail_for_one(folder: Path, rank: int, worker: int, *rest: Any) -> Any:
        if worker == 1:
            raise OSError(errno.EIO, "Input/output error")
        return original(folder, rank, worker, *rest)

    monkeypatch.setattr(_contents, "write_extra", fail_for_one)
    said: dict[int, str | None] = {}
    with adaps.Node([table()], workers=2) as node:

        def write(worker: int) -> None:
            said[worker] = said_by(lambda: node.checkpoint(tmp_path, worker=worker, extra={"worker": worker}))

        threads = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert said == {
        0: "rank 0 could not write the checkpoint: its own exception says why",
        1: "rank 0 could not write the checkpoint: Input/output error",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest-00000001.json", "writer.lock"]
    assert manifest(tmp_path) is None
