"""Reads files of ratings, in blocks, by pyarrow.

A line is a user, an item, a rating and what else there may be, such as the time. Columns are separated by
``::``, tabs or commas, whichever the first line has first in this list. The first line is a header unless its
third column is a number; a header's columns are found by their names, of which a part after a colon does not
count (``user_id:token``). Users and items may be any text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.text_columns import first_line, numbered, text_blocks
from adabench.usecases.interface import DataError

__all__ = ["FORMATS", "Block", "rating_blocks", "rating_file"]

FORMATS = "a file of ratings: user, item, rating, separated by tabs, commas or '::'"

FOLDER_FILES = tuple(
    f"{name}{packed}" for name in ("ratings.csv", "ratings.dat", "u.data") for packed in ("", ".gz")
)
"""What is looked for in a folder."""

NAMES = (
    ("user", "userid", "user_id", "uid", "reviewerid"),
    ("item", "itemid", "item_id", "movie", "movieid", "movie_id", "iid", "asin", "book", "bookid", "book_id"),
    ("rating", "ratings", "score", "stars", "overall"),
)
"""How a header may call users, items and ratings, in lower case."""


class Block(NamedTuple):
    """Some lines: users and items are numbered in the order in which they were first met.

    Attributes
    ----------
    users, items : (n,) int32
    ratings : (n,) float32
    """

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    ratings: NDArray[np.float32]


class _Layout(NamedTuple):
    separator: str
    width: int
    header: bool
    columns: tuple[int, int, int]


def rating_file(path: Path) -> Path:
    """The file at `path`, or the one that a folder holds.

    Raises
    ------
    DataError
        If there is none, or several.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist: data must be {FORMATS}, or a folder with one")
    if not path.is_dir():
        return path
    found = [path / name for name in FOLDER_FILES if (path / name).is_file()]
    if len(found) != 1:
        has = " and ".join(file.name for file in found) or "none of them"
        raise DataError(
            f"{path} has {has}: it must have one of u.data, ratings.dat, ratings.csv (packed: .gz)"
        )
    return found[0]


def rating_blocks(path: Path) -> Iterator[Block]:
    """The file's ratings in their order.

    Raises
    ------
    DataError
        If the file cannot be read, or a line is not what it must be.
    """
    try:
        yield from _blocks(path)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{path} cannot be read ({reason}): it must be {FORMATS}") from error


def _blocks(path: Path) -> Iterator[Block]:
    layout = _layout(path)
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    skipped = int(layout.header)
    quoted = layout.separator == ","
    for line, texts in text_blocks(path, layout.separator, layout.width, layout.columns, skipped, quoted):
        yield Block(numbered(texts[0], users), numbered(texts[1], items), _ratings(texts[2], path, line))
    if not users:
        raise DataError(f"{path} has no ratings: it must be {FORMATS}")


def _layout(path: Path) -> _Layout:
    first = first_line(path)
    separator = next((one for one in ("::", "\t", ",") if one in first), None)
    if separator is None:
        raise DataError(f"{path}: the first line, {first[:60]!r}, has one column: it must be {FORMATS}")
    cells = [cell.strip().strip('"') for cell in first.split(separator)]
    if len(cells) < 3:
        raise DataError(
            f"{path}: the first line, {first[:60]!r}, has {len(cells)} columns: it must be {FORMATS}"
        )
    if _is_number(cells[2]):
        return _Layout(separator, len(cells), False, (0, 1, 2))
    plain = [cell.lower().partition(":")[0] for cell in cells]
    columns = []
    for what, known in zip(("user", "item", "rating"), NAMES, strict=True):
        named = [number for number, name in enumerate(plain) if name in known]
        if len(named) != 1:
            raise DataError(
                f"{path}: the header {first[:60]!r} names {len(named)} columns of {what}s: it must name one, "
                f"for instance {known[0]!r}"
            )
        columns.append(named[0])
    return _Layout(separator, len(cells), True, (columns[0], columns[1], columns[2]))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _ratings(column: Any, path: Path, line: int) -> NDArray[np.float32]:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        values: NDArray[np.float64] = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(~(np.abs(values) < 1e6))
    except pa.ArrowInvalid:
        wrong = np.flatnonzero([not _is_number(text) for text in column.to_pylist()])
    if len(wrong):
        row = int(wrong[0])
        value = column[row].as_py()
        raise DataError(
            f"{path}, line {line + row}: the rating {value[:30]!r} must be a number between -1e6 and 1e6"
        )
    return values.astype(np.float32)
