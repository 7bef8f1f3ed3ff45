"""Reading columns of csv files of any dialect, with errors that name the file and the value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.text_columns import (
    DIALECTS,
    PACKINGS,
    UNREADABLE,
    Dialect,
    Range,
    cells_of,
    files_called,
    find_dialect,
    numbers_of,
    sample_lines,
    text_blocks,
)
from adabench.usecases.gcn.graph import UNLABELLED
from adabench.usecases.interface import DataError

COMMA = Dialect(",", True)
CSV_DIALECTS = (COMMA, *(one for one in DIALECTS if len(one.separator) == 1 and one != COMMA))
INTEGERS = Range("int64", -(2**63), 2**63 - 1, "an integer of 64 bits")
MISSING = frozenset(("", "nan", "NaN", "NA", "N/A", "n/a", "<NA>", "#N/A", "null", "NULL", "None"))
"""Texts of a class that is not known."""

Columns = tuple[int, list[Any]]
"""Number of the first line, and a pyarrow array of texts for each column."""


def require(file: Path) -> Path:
    """The file, which must exist, perhaps with another compression than its name says."""
    if file.is_file():
        return file
    name = file.name.lower()
    plain = name.removesuffix(next((packing for packing in PACKINGS[1:] if name.endswith(packing)), ""))
    found = files_called(file.parent, [plain]) if file.parent.is_dir() else []
    if len(found) != 1:
        raise DataError(f"{file}: there is no such file")
    return found[0]


def column_blocks(file: Path, names: Sequence[str] | None = None, width: int = 0) -> Iterator[Columns]:
    """Yield columns of a csv file, compressed or not, in blocks.

    Parameters
    ----------
    file : Path
        File to read.
    names : sequence of str, optional
        Names of the columns, which the header must have. Without them, the file has no header.
    width : int
        Number of columns that a file without a header must have, all of which are read.

    Raises
    ------
    DataError
        If the file is missing, damaged, or has other columns.
    """

    def fits(rows: list[list[str]]) -> bool:
        if names is not None:
            return {*names} <= {*rows[0]}
        return width == 1 or all(len(row) == width for row in rows)

    path = require(file)
    try:
        if not (lines := sample_lines(path)):
            raise ValueError("it is empty")
        dialect = find_dialect(lines, fits, CSV_DIALECTS) or COMMA
        (first,) = cells_of(lines[:1], dialect)
        if names is None and len(first) != width:
            raise DataError(f"{file}: a row has {len(first)} values where {width} are expected")
        columns = range(width) if names is None else [first.index(name) for name in names]
        yield from text_blocks(path, dialect, len(first), columns, int(names is not None))
    except DataError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: not a readable csv file with the expected columns ({reason})") from error


def read_columns(file: Path, names: Sequence[str] | None = None, width: int = 0) -> Columns:
    """Read whole columns of a csv file; parameters and errors are those of `column_blocks`."""
    import pyarrow as pa  # loads slowly, and nothing that is in the cache needs it

    blocks = [texts for _, texts in column_blocks(file, names, width)]
    none = pa.array([], pa.string())
    count = width if names is None else len(names)
    columns = [pa.concat_arrays([none, *(texts[column] for texts in blocks)]) for column in range(count)]
    return 1 + (names is not None), columns


def integers(file: Path, line: int, columns: Sequence[Any]) -> list[NDArray[np.int64]]:
    """Return columns that must contain integers without gaps; `line` is the number of their first line."""
    return [numbers_of(column, INTEGERS, file, line) for column in columns]


def labels_of(column: Any, file: Path) -> NDArray[np.int64]:
    """Return a column of classes, where an empty field means that the node has no label.

    Integer classes keep their numbers. Other classes are numbered in alphabetical order.
    """
    coded = column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    known = sorted({name for name in names if name not in MISSING})
    try:
        numbers = {name: float(name) for name in known}
    except ValueError:
        numbers = {name: float(number) for number, name in enumerate(known)}
    for name, number in numbers.items():
        if not (number % 1 == 0 and abs(number) < 2**63):
            raise DataError(f"{file}: class {name!r} must be an integer of 64 bits")
    labels = np.array([int(numbers.get(name, UNLABELLED)) for name in names], dtype=np.int64)
    found: NDArray[np.int64] = labels[coded.indices.to_numpy()]
    return found
