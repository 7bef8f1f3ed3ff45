"""Parses raw Criteo files in blocks with pyarrow. If this fails, `read_raw` finds the line."""

from __future__ import annotations

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

from adabench.usecases.common.text_columns import UNREADABLE, first_line, text_blocks
from adabench.usecases.ctr.read_raw import COLUMNS, MISSING_ID, raw_layout, read_raw
from adabench.usecases.ctr.table import DENSE_FIELDS, Table, log_transform
from adabench.usecases.interface import DataError

_WIDTH = 8  # hexadecimal digits of a categorical value

_DIGITS: NDArray[np.uint8] = np.full(256, 255, dtype=np.uint8)
"""Value of each character as a hexadecimal digit; 255 for all others."""
for _value, _digit in enumerate("0123456789abcdef"):
    _DIGITS[[ord(_digit), ord(_digit.upper())]] = _value


class _Unusable(ValueError):
    """A block with an invalid value."""


def raw_blocks(files: Sequence[Path]) -> Iterator[tuple[int, Table]]:
    """Yield rows of the files in order, in blocks, each with the number of its file.

    Shows its progress if standard error is a terminal.

    Raises
    ------
    DataError
        If a file cannot be read, as in `read_raw`.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("reading {task.description}"),
        BarColumn(None),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        for index, path in enumerate(files):
            task = progress.add_task(path.name, total=path.stat().st_size)
            with path.open("rb") as file:
                try:
                    for block in _blocks(path, file):
                        progress.update(task, completed=file.tell())
                        yield index, block
                except UNREADABLE as error:
                    read_raw(path)  # raises an error that names the line
                    reason = " ".join(str(error).split())
                    raise DataError(
                        f"{path} cannot be read ({reason}): it must be a file of raw Criteo rows"
                    ) from error


def _blocks(path: Path, file: IO[bytes]) -> Iterator[Table]:
    if not first_line(path):
        raise _Unusable("it is empty")
    dialect, header = raw_layout(path)
    empty = True
    for _, columns in text_blocks(path, dialect, COLUMNS, range(COLUMNS), int(header), file=file):
        empty = False
        yield _table(columns)
    if empty:
        raise _Unusable("it has no rows")


def _table(columns: Sequence[Any]) -> Table:
    import pyarrow.compute as pc

    clicks = pc.equal(columns[0], "1").to_numpy(zero_copy_only=False)
    if not (clicks | pc.equal(columns[0], "0").to_numpy(zero_copy_only=False)).all():
        raise _Unusable("a label is neither 0 nor 1")
    counts = [_numbers(column) for column in columns[1 : 1 + DENSE_FIELDS]]
    ids = [_hashes(column) for column in columns[1 + DENSE_FIELDS :]]
    return Table(clicks.astype(np.uint8), log_transform(np.stack(counts, axis=1)), np.stack(ids, axis=1))


def _numbers(column: Any) -> NDArray[np.float64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    filled = pc.if_else(pc.equal(column, ""), "0", column)
    numbers: NDArray[np.float64] = pc.cast(filled, pa.float64()).to_numpy(zero_copy_only=False)
    if not np.isfinite(numbers).all():
        raise _Unusable("an integer is not a finite number")
    return numbers


def _hashes(column: Any) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    missing = pc.equal(column, "").to_numpy(zero_copy_only=False)
    padded = pc.utf8_lpad(column, width=_WIDTH, padding="0")
    characters = np.frombuffer(padded.buffers()[2], dtype=np.uint8)[: _WIDTH * len(column)]
    lengths = pc.binary_length(padded).to_numpy(zero_copy_only=False)
    if not (lengths == _WIDTH).all():
        raise _Unusable("a categorical is longer than 8 digits")
    digits = _DIGITS[characters].reshape(-1, _WIDTH)
    if digits.max(initial=0) > 15:
        raise _Unusable("a categorical is not hexadecimal")
    octets = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2])
    hashes: NDArray[np.int64] = octets.view(">u4")[:, 0].astype(np.int64)
    hashes[missing] = MISSING_ID
    return hashes
