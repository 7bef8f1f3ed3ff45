"""Readers of Criteo data: accepted files, and one sentence for refused ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adabench.usecases.common.batches import Draw
from adabench.usecases.ctr.data import load
from adabench.usecases.ctr.generate import generate
from adabench.usecases.ctr.read_npy import DENSE, LABELS, SPARSE, npy_blocks, npy_files
from adabench.usecases.ctr.read_raw import MISSING_ID, raw_blocks
from adabench.usecases.ctr.table import row_ids
from adabench.usecases.interface import DataError

ROWS = 140
ROW = ["1", *map(str, range(13)), *(f"{number:08x}" for number in range(26))]


@pytest.fixture
def triple(tmp_path: Path) -> Path:
    table = generate(ROWS)
    np.save(tmp_path / LABELS, table.labels)
    np.save(tmp_path / DENSE, table.dense)
    np.save(tmp_path / SPARSE, table.ids)
    return tmp_path


def write(path: Path, rows: list[list[str]], separator: str = "\t") -> Path:
    path.write_text("".join(separator.join(row) + "\n" for row in rows))
    return path


def with_cell(column: int, cell: str) -> list[str]:
    return [*ROW[:column], cell, *ROW[column + 1 :]]


def test_npy_triple_is_read_as_it_was_written(triple: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adabench.usecases.ctr.read_npy.ROWS_AT_ONCE", 50)
    blocks, written = list(npy_blocks(npy_files(triple))), generate(ROWS)
    assert [(index, len(block.labels)) for index, block in blocks] == [(0, 50), (0, 50), (0, 40)]
    for column, expected in written._asdict().items():
        assert np.array_equal(np.concatenate([getattr(block, column) for _, block in blocks]), expected)


def test_npy_triple_trains_as_what_it_was_written_of(triple: Path) -> None:
    read, written = load(triple, 0), load(None, ROWS)
    assert (read.rows, read.first_rows.tolist()) == (written.rows, written.first_rows.tolist())
    for split in ("train", "valid", "test"):
        own, expected = getattr(read, split), getattr(written, split)
        everything = Draw(torch.arange(len(expected)), 0)
        for one, other in zip(own[everything], expected[everything], strict=True):
            torch.testing.assert_close(one, other)


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, change(np.load(folder / name)))


def put(name: str, place: tuple[int, ...], value: float) -> Callable[[Path], None]:
    def change(array: Any) -> Any:
        array[place] = value
        return array

    return edit(name, change)


def truncate(folder: Path) -> None:
    content = (folder / SPARSE).read_bytes()
    (folder / SPARSE).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / DENSE).unlink(), f"{DENSE} is missing: the folder must hold"),
        (truncate, rf"{SPARSE} cannot be read \(.*\): it must be a complete .npy file"),
        (lambda folder: (folder / LABELS).write_bytes(b""), f"{LABELS} cannot be read .* complete .npy file"),
        (edit(LABELS, lambda array: array[:, None]), rf"{LABELS} has shape \(140, 1\): it must be \(n,\)"),
        (edit(SPARSE, lambda array: array[:, :25]), rf"{SPARSE} has shape \(140, 25\): it must be \(n, 26\)"),
        (edit(DENSE, lambda array: array[:139]), f"{DENSE} has 139 rows: it must have 140"),
        (edit(LABELS, lambda array: array[:0]), f"{LABELS} has no rows"),
        (edit(SPARSE, lambda array: array.astype(np.float64)), "has dtype float64: it must hold integers"),
        (edit(DENSE, lambda array: array.astype(str)), f"{DENSE} has dtype <U.*: it must hold floats"),
        (put(LABELS, (3,), 2), rf"{LABELS} holds 2 at \[3\]: a label must be 0 or 1"),
        (put(SPARSE, (4, 5), -7), rf"{SPARSE} holds -7 at \[4, 5\]: an id must be zero or more"),
        (put(DENSE, (0, 12), np.nan), rf"{DENSE} holds nan at \[0, 12\]: .* must be a finite number"),
        (put(DENSE, (120, 0), np.inf), rf"{DENSE} holds inf at \[120, 0\]: .* must be a finite number"),
        (edit(LABELS, np.zeros_like), "train split of .* has 0 clicks in 100 rows"),
    ],
)
def test_unusable_npy_files_are_named(
    triple: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], message: str
) -> None:
    monkeypatch.setattr("adabench.usecases.ctr.read_npy.ROWS_AT_ONCE", 50)
    spoil(triple)
    with pytest.raises(DataError, match=message) as raised:
        load(triple, 0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("header", [True, False])
def test_raw_rows_are_transformed(tmp_path: Path, separator: str, header: bool) -> None:
    negative = with_cell(2, "-2")
    missing = ["0", *[""] * 39]
    rows = [ROW, negative, missing]
    if header:
        rows.insert(0, ["label", *(f"I{i}" for i in range(13)), *(f"C{i}" for i in range(26))])
    ((_, table),) = raw_blocks([write(tmp_path / "rows", rows, separator)])
    assert table.labels.tolist() == [1, 1, 0]
    np.testing.assert_allclose(table.dense[0], np.log1p(np.arange(13)), rtol=1e-6)
    assert table.dense[1, 1] == -1
    assert (table.dense[2] == 0).all()
    assert table.ids[0].tolist() == list(range(26))
    assert (table.ids[2] == MISSING_ID).all()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW[:-1], "line 2 has 39 columns: it must have 40"),
        ([*ROW, ""], "line 2 has 41 columns: it must have 40"),
        (["x"], "line 2 has 1 columns: it must have 40"),
        (with_cell(0, "2"), "line 2 has label '2': it must be 0 or 1"),
        (with_cell(3, "many"), "line 2: 'many' must be a finite number or empty"),
        (with_cell(3, "nan"), "line 2: 'nan' must be a finite number or empty"),
        (
            with_cell(20, "xyz"),
            "line 2 has categorical 'xyz': it must be up to 8 hexadecimal digits or empty",
        ),
        (with_cell(20, "-1"), "line 2 has categorical '-1'"),
        (with_cell(20, "123456789"), "line 2 has categorical '123456789'"),
    ],
)
def test_unusable_raw_rows_are_named_with_their_line(tmp_path: Path, row: list[str], message: str) -> None:
    path = write(tmp_path / "rows.csv", [ROW, row])
    with pytest.raises(DataError, match=message) as raised:
        load(path, 0)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows: it must hold lines of 40 columns"),
        (b"label\tI1\n", "has no rows"),
        (b"\xff\xfe\x00", "cannot be read"),
        (("\t".join(ROW) + "\n").encode() * 6, "has 6 rows: it must have at least 7 to be split"),
    ],
)
def test_unusable_raw_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(path, 0)


def test_raw_files_in_a_folder_are_the_splits(tmp_path: Path) -> None:
    click, other = ROW, with_cell(0, "0")
    write(tmp_path / "train.csv", [click, other, with_cell(14, "ffffffff")])
    write(tmp_path / "dev.csv", [click, other], ",")
    write(tmp_path / "test.txt", [click, other, other, with_cell(14, "aaaaaaaa")])
    data = load(tmp_path, 0)
    assert [len(split) for split in (data.train, data.valid, data.test)] == [3, 2, 4]
    assert data.rows == 26 + 2  # ids that occur only in the test split have rows, too


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "holds no Criteo data: it must hold sampled_labels.npy"),
        (["train.csv", "test.csv"], "has no dev.csv, dev.tsv or dev.txt: it must have one file each"),
        (["train.csv", "train.tsv", "dev.csv", "test.csv"], "has train.csv and train.tsv"),
    ],
)
def test_unusable_folders_are_named(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        write(tmp_path / name, [ROW])
    with pytest.raises(DataError, match=message):
        load(tmp_path, 0)


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist: data must be a folder or a file"):
        load(tmp_path / "nowhere", 0)


def test_one_file_is_split_by_sevenths_in_its_order(tmp_path: Path) -> None:
    rows = [["01"[i % 2], str(i), *ROW[2:]] for i in range(24)]
    data = load(write(tmp_path / "rows.tsv", rows), 0)
    assert [len(split) for split in (data.train, data.valid, data.test)] == [18, 3, 3]
    first = np.concatenate([split.samples.dense[:, 0] for split in (data.train, data.valid, data.test)])
    assert (np.diff(first) > 0).all()
    assert first[:18].mean() == pytest.approx(0, abs=1e-6)
    assert first[:18].std() == pytest.approx(1, abs=1e-6)


def test_row_ids_are_contiguous_and_tell_fields_apart() -> None:
    table = generate(50)
    ids, rows = row_ids(table)
    assert sorted(set(ids.ravel().tolist())) == list(range(rows))
    for field in range(26):
        pairs = set(zip(table.ids[:, field].tolist(), ids[:, field].tolist(), strict=True))
        assert len(pairs) == len(set(table.ids[:, field].tolist())) == len(set(ids[:, field].tolist()))
    assert (np.diff([ids[:, field].max() for field in range(26)]) > 0).all()


def test_fingerprint_changes_with_a_value(triple: Path) -> None:
    before = load(triple, 0).fingerprint
    assert before.startswith("sha256:")
    assert load(triple, 0).fingerprint == before
    put(DENSE, (0, 0), 17.25)(triple)
    assert load(triple, 0).fingerprint != before


def test_fingerprint_changes_with_the_split(tmp_path: Path) -> None:
    pair = [ROW, with_cell(0, "0")]
    fingerprints = set()
    for train, dev in ((2, 1), (1, 2), (2, 1)):
        write(tmp_path / "train.csv", pair * train)
        write(tmp_path / "dev.csv", pair * dev)
        write(tmp_path / "test.csv", pair)
        fingerprints.add(load(tmp_path, 0).fingerprint)
    assert len(fingerprints) == 2


def test_criteo_subset(shared_data: Path) -> None:
    data = load(shared_data / "criteo_subset", 0)
    assert data.rows == 39_910
    assert [len(split) for split in (data.train, data.valid, data.test)] == [5852, 1170, 1170]


def test_raw_criteo(shared_data: Path) -> None:
    data = load(shared_data / "criteo_raw_8k", 0)
    assert [len(split) for split in (data.train, data.valid, data.test)] == [7200, 409, 391]
    assert load(shared_data / "criteo_raw_8k" / "train.csv", 0).rows < data.rows
