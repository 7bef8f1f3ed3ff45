"""Reads columns of csv files. Errors name the file and the value."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from adabench.usecases.gcn.graph import UNLABELLED
from adabench.usecases.interface import DataError

__all__ = ["column_blocks", "integers", "labels_of", "read_columns", "require"]


def require(file: Path) -> Path:
    """Return the file, which must exist."""
    if not file.is_file():
        raise DataError(f"{file}: there is no such file")
    return file


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
    header = None if names is None else 0
    columns = None if names is None else list(names)
    with _readable(file):
        table = pd.read_csv(require(file), header=header, usecols=columns, low_memory=False)
    _require_width(table, width, file)
    return table


def column_blocks(file: Path, width: int, rows: int) -> Iterator[pd.DataFrame]:
    """Yield a csv file without a header, compressed or not, in blocks of at most `rows` rows.

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
    with _readable(file), pd.read_csv(require(file), header=None, chunksize=rows, low_memory=False) as blocks:
        for table in blocks:
            _require_width(table, width, file)
            yield table


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (ValueError, OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: not a readable csv file with the expected columns ({reason})") from error


def _require_width(table: pd.DataFrame, width: int | None, file: Path) -> None:
    if width is not None and table.shape[1] != width:
        raise DataError(f"{file}: a row has {table.shape[1]} values where {width} are expected")


def integers(column: pd.Series, file: Path) -> NDArray[np.int64]:
    """Return a column that must contain integers without gaps."""
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
    labels = np.full(len(column), UNLABELLED, dtype=np.int64)
    known = column.notna().to_numpy()
    present = column[known]
    if pd.api.types.is_numeric_dtype(present.dtype) or pd.api.types.is_bool_dtype(present.dtype):
        labels[known] = integers(present.astype(float), file)
    else:
        labels[known] = pd.Categorical(present.astype(str)).codes
    return labels
