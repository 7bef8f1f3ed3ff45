"""Raw Criteo files in the cache: read once, shared, and read again when they change."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from adabench.harness.launch.fork_server import ForkServer
from adabench.usecases.common.batches import Draw
from adabench.usecases.common.cache import cache_root
from adabench.usecases.ctr import cache
from adabench.usecases.ctr.cache import cached
from adabench.usecases.ctr.data import load
from adabench.usecases.ctr.read_raw import MISSING_ID
from adabench.usecases.ctr.sizes import Sizes
from adabench.usecases.ctr.table import Table, log_transform, row_ids, standardise
from adabench.usecases.interface import DataError
from tests.warm import WarmProcess


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ADABENCH_CACHE", str(folder))
    return folder


def raw_text(rows: int, seed: int = 0, separator: str = "\t") -> str:
    """Rows with missing and negative integers, and missing, short and upper-case categoricals."""
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        counts = [str(value) if value > -3 else "" for value in generator.integers(-5, 1000, 13)]
        forms = ["", "{:08x}", "{:x}", "{:08X}"]
        ids = [
            forms[generator.integers(4)].format(int(value) ** 7 % 2**32)
            for value in generator.integers(1, 40, 26)
        ]
        lines.append(separator.join([str(generator.integers(2)), *counts, *ids]))
    return "\n".join(lines) + "\n"


def table_of(text: str) -> Table:
    """The rows of a text without a header, read cell by cell."""
    rows = [re.split("[\t,]", line) for line in text.splitlines()]
    counts = np.array([[float(cell or 0) for cell in row[1:14]] for row in rows])
    ids = [[int(cell, 16) if cell else MISSING_ID for cell in row[14:]] for row in rows]
    return Table(np.array([row[0] == "1" for row in rows], np.uint8), log_transform(counts), np.array(ids))


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_the_cache_holds_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str, header: bool, packed: bool
) -> None:
    monkeypatch.setattr("adabench.usecases.common.text_columns._BLOCK_BYTES", 4096)  # several blocks
    monkeypatch.setattr(cache, "_BLOCK", 50)
    text = raw_text(300, separator=separator)
    table = table_of(text)
    if header:
        text = separator.join(["label", *map(str, range(39))]) + "\n" + text
    path = tmp_path / ("rows.tsv.gz" if packed else "rows.tsv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    columns = cached([path], "rows")
    ids, rows = row_ids(table)
    assert columns.sizes == Sizes.sevenths(300, "rows") == (216, 42, 42)
    assert np.array_equal(columns.labels, table.labels)
    assert np.array_equal(columns.ids, ids)
    assert columns.rows == rows
    assert np.array_equal(columns.first_rows, ids.min(axis=0))
    np.testing.assert_allclose(
        columns.dense, standardise(table.dense, table.dense[:216]), rtol=1e-5, atol=1e-6
    )


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(raw_text(70))
    first = load(path, 0)
    monkeypatch.setattr(cache, "raw_blocks", lambda files: pytest.fail("read again"))
    second = load(path, 0)
    assert second.fingerprint == first.fingerprint
    rows = torch.arange(len(first.train))
    everything = Draw(rows, 0)
    assert all(
        torch.equal(one, other)
        for one, other in zip(first.train[everything], second.train[everything], strict=True)
    )
    batch = second.train[Draw(rows[:3], 0)]
    assert [column.dtype for column in batch] == [torch.float32, torch.int64, torch.float32]


def test_a_file_that_changes_is_read_again_and_the_old_cache_goes(tmp_path: Path, empty_cache: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(raw_text(70))
    first = cached([path], "rows")
    time = path.stat().st_mtime_ns
    path.write_text(raw_text(70, seed=1))
    os.utime(path, ns=(time + 1, time + 1))
    second = cached([path], "rows")
    assert second.fingerprint != first.fingerprint
    assert len([folder for folder in empty_cache.glob("*/*") if folder.is_dir()]) == 1
    assert first.labels.sum() > 0  # data in use stay readable


@pytest.mark.parametrize("name", ["arrays.json", "ids.bin", "dense.bin", "labels.bin"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, empty_cache: Path, name: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(raw_text(70))
    fingerprint = cached([path], "rows").fingerprint
    (file,) = empty_cache.glob(f"*/*/{name}")
    file.write_bytes(file.read_bytes()[:-1])
    assert cached([path], "rows").fingerprint == fingerprint


def test_a_bad_line_leaves_nothing_behind_and_is_named(tmp_path: Path, empty_cache: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(raw_text(70) + raw_text(1).replace("\n", "x\n") + raw_text(5))
    with pytest.raises(DataError, match=r"rows.tsv, line 71 has categorical '.*x'"):
        cached([path], "rows")
    assert not list(empty_cache.glob("*/*/*"))
    assert {file.name for file in empty_cache.glob("*/*")} == {"contents.json", "lock"}


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv.gz"
    path.write_bytes(gzip.compress(raw_text(700).encode())[:-100])
    with pytest.raises(DataError, match=r"rows.tsv.gz cannot be read \("):
        cached([path], "rows")


def test_a_cache_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(raw_text(70))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ADABENCH_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(DataError, match=r"cannot be used .*set the environment variable ADABENCH_CACHE"):
        cached([path], "rows")


def test_processes_share_one_cache(tmp_path: Path, empty_cache: Path, warm: ForkServer) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(raw_text(700))
    program = (
        "import sys; from pathlib import Path; from adabench.usecases.ctr.cache import cached; "
        "print(cached([Path(sys.argv[1])], 'rows').fingerprint)"
    )
    command = ["-c", program, str(path)]
    processes = [WarmProcess(warm, command, os.environ, tmp_path) for _ in range(3)]
    said = {process.communicate()[0] for process in processes}
    assert {process.returncode for process in processes} == {0}
    assert said == {cached([path], "rows").fingerprint + "\n"}
    assert len([folder for folder in empty_cache.glob("*/*") if folder.is_dir()]) == 1


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ADABENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "adabench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "adabench"


def test_real_rows_are_those_of_the_line_reader(shared_data: Path) -> None:
    folder = shared_data / "criteo_raw_8k"
    files = [folder / f"{name}.csv" for name in ("train", "dev", "test")]
    columns = cached(files, "rows")
    tables = [table_of(file.read_text()) for file in files]
    assert columns.sizes == tuple(len(table.labels) for table in tables)
    assert np.array_equal(columns.labels, np.concatenate([table.labels for table in tables]))
