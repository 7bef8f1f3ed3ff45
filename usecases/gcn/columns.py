"""Reading columns of csv files of any dialect, with errors that name the file and the value."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.text_columns import (
    DIALECTS,
    PACKINGS,
    UNREADABLE,
    Dialect,
    cells_of,
    files_called,
    find_dialect,
    first_line,
    open_bytes,
    sample_lines,
    text_blocks,
)
from adabench.usecases.gcn.graph import UNLABELLED
from adabench.usecases.interface import DataError

# Functions import pandas, because its import takes longer than commands that read no data.
if TYPE_CHECKING:
    import pandas as pd

COMMA = Dialect(",", True)
CSV_DIALECTS = (COMMA, *(one for one in DIALECTS if len(one.separator) == 1 and one != COMMA))


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


def read_columns(file: Path, names: Sequence[str] | None = None, width: int | None = None) -> pd.DataFrame:
    """Read a csv file, compressed or not.

    Parameters
    ----------
    file : Path
        File to read.
    names : sequence of str, optional
        Names of columns that the header must have. Without them, the file has no header and columns are
        numbered.
    width : int, optional
        Number of columns that a file without a header must have.

    Raises
    ------
    DataError
        If the file is missing, damaged, or has other columns.
    """
    import pandas as pd

    header = None if names is None else 0
    columns = None if names is None else list(names)

    def fits(rows: list[list[str]]) -> bool:
        return width is not None or {*(names or ())} <= {*rows[0]}

    with _opened(file, fits) as (path, stream, dialect):
        if names is not None:
            _require_whole_lines(path, dialect)
        table: pd.DataFrame = pd.read_csv(
            stream, header=header, usecols=columns, low_memory=False, **_options(dialect)
        )
    _require_width(table, width, file)
    return table


def column_blocks(file: Path, width: int, rows: int) -> Iterator[pd.DataFrame]:
    """A csv file without a header, compressed or not, in blocks with a maximum number of rows.

    Parameters
    ----------
    file : Path
        File to read.
    width : int
        Number of columns that the file must have.
    rows : int
        Maximum number of rows of a block.

    Raises
    ------
    DataError
        Like `read_columns`.
    """
    import pandas as pd

    def fits(rows: list[list[str]]) -> bool:
        return all(len(row) == width for row in rows)

    with ExitStack() as stack:
        _, stream, dialect = stack.enter_context(_opened(file, fits))
        blocks = pd.read_csv(stream, header=None, chunksize=rows, low_memory=False, **_options(dialect))
        for table in stack.enter_context(blocks):
            _require_width(table, width, file)
            yield table


@contextmanager
def _opened(file: Path, fits: Callable[[list[list[str]]], bool]) -> Iterator[tuple[Path, IO[bytes], Dialect]]:
    """The path of a file, its content as UTF-8, and the first dialect that fits its first lines."""
    try:
        path = require(file)
        dialect = find_dialect(sample_lines(path) or [""], fits, CSV_DIALECTS) or COMMA
        with open_bytes(path) as stream:
            yield path, stream, dialect
    except DataError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: not a readable csv file with the expected columns ({reason})") from error


def _options(dialect: Dialect) -> dict[str, Any]:
    """The options of pandas for a dialect."""
    return {"sep": dialect.separator, "quoting": csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE}


def _require_whole_lines(path: Path, dialect: Dialect) -> None:
    """Raise an error if a line has fewer cells than the header; pandas would add empty ones."""
    (header,) = cells_of([first_line(path)], dialect)
    if not header:
        return  # The file is empty, which pandas reports.
    for _ in text_blocks(path, dialect, len(header), (0,), skipped=1):
        pass


def _require_width(table: pd.DataFrame, width: int | None, file: Path) -> None:
    if width is not None and table.shape[1] != width:
        raise DataError(f"{file}: a row has {table.shape[1]} values where {width} are expected")


def integers(column: pd.Series, file: Path) -> NDArray[np.int64]:
    """Return a column that must contain integers without gaps."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    wrong = np.flatnonzero(~((numbers % 1 == 0) & (numbers.abs() < 2**63)))
    if len(wrong):
        row = int(wrong[0])
        number = column.index[row]
        raise DataError(f"{file}: {column.iloc[row]!r} in data row {number} must be an integer of 64 bits")
    return numbers.to_numpy(np.int64)


def labels_of(column: pd.Series, file: Path) -> NDArray[np.int64]:
    """Return a column of classes, where an empty field means that the node has no label.

    Integer classes keep their numbers. Other classes are numbered in alphabetical order.
    """
    import pandas as pd

    labels = np.full(len(column), UNLABELLED, dtype=np.int64)
    known = column.notna().to_numpy()
    present = column[known]
    if pd.api.types.is_numeric_dtype(present.dtype) or pd.api.types.is_bool_dtype(present.dtype):
        labels[known] = integers(present.astype(float), file)
    else:
        labels[known] = pd.Categorical(present.astype(str)).codes
    return labels
