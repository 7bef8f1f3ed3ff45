"""Reads Criteo as published: lines of a label, 13 integers and 26 hashed categories, empty if missing."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterable
from pathlib import Path
from string import hexdigits

import numpy as np

from adabench.usecases.common.text_columns import (
    UNREADABLE,
    Dialect,
    cells_of,
    find_dialect,
    open_bytes,
    sample_lines,
)
from adabench.usecases.ctr.table import DENSE_FIELDS, SPARSE_FIELDS, Table, log_transform
from adabench.usecases.interface import DataError

COLUMNS = 1 + DENSE_FIELDS + SPARSE_FIELDS
HEX_DIGITS = frozenset(hexdigits)
MISSING_ID = 1 << 32
"""Id of a missing categorical value. Hashes have 32 bits, so none equals it."""


def read_raw(path: Path) -> Table:
    """Read one file of raw rows.

    Columns are separated as `raw_layout` finds. A missing integer counts as 0, a missing categorical as a
    value of its own.

    Raises
    ------
    DataError
        If the file cannot be read or is empty, or if a line has the wrong number of columns or an invalid
        value. The error names the line.
    """
    try:
        dialect, header = raw_layout(path)
        with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8") as text:
            return _parse(path, text, dialect, header)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: it must be a file of raw Criteo rows") from None
    except UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} cannot be read ({error}): it must be a text file of raw Criteo rows"
        ) from error


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


def _parse(path: Path, lines: Iterable[str], dialect: Dialect, header: bool) -> Table:
    labels, counts, ids = array("B"), array("d"), array("q")
    for number, line in enumerate(lines, 1):
        if line == "\n":
            continue
        if number == 1 and header:
            continue
        (cells,) = cells_of([line.rstrip("\n")], dialect)
        if len(cells) != COLUMNS:
            raise DataError(
                f"{path}, line {number} has {len(cells)} columns: it must have {COLUMNS}, "
                f"the label, {DENSE_FIELDS} integers and {SPARSE_FIELDS} categoricals"
            )
        if cells[0] not in ("0", "1"):
            raise DataError(f"{path}, line {number} has label {cells[0]!r}: a label must be 0 or 1")
        labels.append(cells[0] == "1")
        counts.extend([_count(path, number, cell) for cell in cells[1 : 1 + DENSE_FIELDS]])
        ids.extend([_hash(path, number, cell) for cell in cells[1 + DENSE_FIELDS :]])
    if not labels:
        raise DataError(f"{path} has no rows: it must hold lines of {COLUMNS} columns")
    return Table(
        np.array(labels, dtype=np.uint8),
        log_transform(np.array(counts, dtype=np.float64).reshape(-1, DENSE_FIELDS)),
        np.array(ids, dtype=np.int64).reshape(-1, SPARSE_FIELDS),
    )


def _count(path: Path, number: int, cell: str) -> float:
    if not cell:
        return 0.0
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise DataError(f"{path}, line {number} has integer {cell!r}: it must be a finite number or empty")
    return value


def _hash(path: Path, number: int, cell: str) -> int:
    if not cell:
        return MISSING_ID
    if len(cell) > 8 or not HEX_DIGITS.issuperset(cell):
        raise DataError(
            f"{path}, line {number} has categorical {cell!r}: it must be up to 8 hexadecimal digits or empty"
        )
    return int(cell, 16)
