"""Reads Criteo as published: lines of a label, 13 integers and 26 hashed categories, empty if missing."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from adabench.usecases.common.text_columns import (
    Dialect,
    Range,
    cells_of,
    find_dialect,
    numbers_of,
    open_bytes,
    readable,
    sample_lines,
    text_blocks,
)
from adabench.usecases.ctr.table import DENSE_FIELDS, SPARSE_FIELDS, Table, log_transform
from adabench.usecases.interface import DataError

COLUMNS = 1 + DENSE_FIELDS + SPARSE_FIELDS
MISSING_ID = 1 << 32
"""Id of a missing categorical value. Hashes have 32 bits, so none equals it."""
INTEGERS = Range("float64", float(np.finfo("f8").min), float(np.finfo("f8").max), "a finite number or empty")

_WIDTH = 8  # hexadecimal digits of a categorical value

_DIGITS: NDArray[np.uint8] = np.full(256, 255, dtype=np.uint8)
"""Value of each character as a hexadecimal digit; 255 for all others."""
for _value, _digit in enumerate("0123456789abcdef"):
    _DIGITS[[ord(_digit), ord(_digit.upper())]] = _value


def raw_blocks(files: Sequence[Path]) -> Iterator[tuple[int, Table]]:
    """Yield rows of the files in order, in blocks, each with the number of its file.

    Columns are separated as `raw_layout` finds. A missing integer counts as 0, a missing categorical as a
    value of its own. Shows its progress if standard error is a terminal.

    Raises
    ------
    DataError
        If a file cannot be read or is empty, or if a line has the wrong number of columns or an invalid
        value. The error names the line.
    """
    console = Console(stderr=True)
    shown = (TextColumn("reading {task.description}"), BarColumn(None), DownloadColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*shown, *times, console=console, transient=True, disable=hidden) as progress:
        for index, path in enumerate(files):
            task = progress.add_task(path.name, total=path.stat().st_size)
            with readable(path, "it must be a text file of raw Criteo rows"), path.open("rb") as file:
                for block in _blocks(path, file):
                    progress.update(task, completed=file.tell())
                    yield index, block


def raw_layout(path: Path) -> tuple[Dialect, bool]:
    """The dialect of a file, and whether its first line is a header, whose first cell is ``label``.

    It is the first dialect with which the first lines have a column for each field and labels of 0 and 1. If
    there is none, columns are separated by tabs, or by commas if the first line has no tab.
    """
    lines = sample_lines(path) or [""]

    def fits(rows: list[list[str]]) -> bool:
        data = rows[_is_header(rows[0]) :]
        return all(len(row) == COLUMNS for row in rows) and all(row[0] in ("0", "1") for row in data)

    dialect = find_dialect(lines, lambda rows: bool(rows) and fits(rows))
    dialect = dialect or Dialect("\t" if "\t" in lines[0] else ",", False)
    return dialect, _is_header(cells_of(lines[:1], dialect)[0])


def _is_header(cells: list[str]) -> bool:
    return bool(cells) and cells[0].strip().lower() == "label"


def _blocks(path: Path, file: IO[bytes]) -> Iterator[Table]:
    empty = True
    if sample_lines(path):
        dialect, header = raw_layout(path)
        try:
            for line, columns in text_blocks(path, dialect, COLUMNS, range(COLUMNS), int(header), file=file):
                empty = False
                yield _table(path, line, columns)
        except ValueError:
            _require_columns(path, dialect, header)
            raise
    if empty:
        raise DataError(f"{path} has no rows: it must hold lines of {COLUMNS} columns")


def _require_columns(path: Path, dialect: Dialect, header: bool) -> None:
    """Raise an error that names the first line with a wrong number of columns, if there is one."""
    with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8") as text:
        for number, line in enumerate(text, 1):
            count = len(cells_of([line.rstrip("\n")], dialect)[0])
            if count != COLUMNS and not (header and number == 1):
                raise DataError(
                    f"{path}, line {number} has {count} columns: it must have {COLUMNS}, "
                    f"the label, {DENSE_FIELDS} integers and {SPARSE_FIELDS} categoricals"
                )


def _table(path: Path, line: int, columns: Sequence[Any]) -> Table:
    import pyarrow.compute as pc

    clicks, others = (pc.equal(columns[0], label).to_numpy(zero_copy_only=False) for label in "10")
    _refuse(path, line, columns[0], ~(clicks | others), "label", "0 or 1")
    integers = [pc.if_else(pc.equal(one, ""), "0", one) for one in columns[1 : 1 + DENSE_FIELDS]]
    counts = [numbers_of(one, INTEGERS, path, line) for one in integers]
    ids = [_hashes(path, line, one) for one in columns[1 + DENSE_FIELDS :]]
    return Table(clicks.astype(np.uint8), log_transform(np.stack(counts, axis=1)), np.stack(ids, axis=1))


def _hashes(path: Path, line: int, column: Any) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    allowed = f"up to {_WIDTH} hexadecimal digits or empty"
    missing = pc.equal(column, "").to_numpy(zero_copy_only=False)
    padded = pc.utf8_lpad(column, width=_WIDTH, padding="0")
    characters = np.frombuffer(padded.buffers()[2], dtype=np.uint8)[: _WIDTH * len(column)]
    lengths = pc.binary_length(padded).to_numpy(zero_copy_only=False)
    _refuse(path, line, column, lengths != _WIDTH, "categorical", allowed)
    digits = _DIGITS[characters].reshape(-1, _WIDTH)
    _refuse(path, line, column, digits.max(axis=1, initial=0) > 15, "categorical", allowed)
    octets = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    hashes: NDArray[np.int64] = octets.view(">u4")[:, 0].astype(np.int64)
    hashes[missing] = MISSING_ID
    return hashes


def _refuse(path: Path, line: int, column: Any, wrong: NDArray[np.bool_], what: str, allowed: str) -> None:
    """Raise an error that names the first wrong value of a column whose first line has the number `line`."""
    if wrong.any():
        row = int(wrong.argmax())
        value = column[row].as_py()[:30]
        raise DataError(f"{path}, line {line + row} has {what} {value!r}: it must be {allowed}")
