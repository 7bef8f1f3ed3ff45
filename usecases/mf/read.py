"""Reads files of ratings in blocks with pyarrow.

A line has a user, an item, a rating, and further columns such as the time. The separator is ``::``, a tab,
comma, semicolon, vertical bar or space. The first of these is used that gives the first lines equal numbers
of columns, with numbers as ratings. Cells can be in double quotes. The first line is a header unless its
third column is a number. Columns of a header are found by their names, where a part after a colon is ignored
(``user_id:token``). Users and items can be any text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.text_columns import (
    DIALECTS,
    Dialect,
    Range,
    cells_of,
    files_called,
    ids_of,
    numbered,
    numbers_of,
    readable,
    sample_lines,
    text_blocks,
)
from adabench.usecases.interface import DataError

FORMATS = "a file of ratings: user, item, rating, separated by tabs, commas or '::'"

RATINGS = Range("float64", -1e6, 1e6, "a rating, a number between -1e6 and 1e6")

FOLDER_FILES = ("ratings.csv", "ratings.dat", "u.data")
"""Names of a folder's file of ratings."""

NAMES = (
    ("user", "userid", "user_id", "uid", "reviewerid"),
    ("item", "itemid", "item_id", "movie", "movieid", "movie_id", "iid", "asin", "book", "bookid", "book_id"),
    ("rating", "ratings", "score", "stars", "overall"),
)
"""Names of users, items and ratings in a header, in lower case."""


class Block(NamedTuple):
    """A block of lines. Users and items are numbered in the order of their first occurrence, or hashed.

    Attributes
    ----------
    users, items : (n,) int32 or int64
        Numbers of users and items, or their ids as in the data.
    ratings : (n,) float32
        Ratings.
    """

    users: NDArray[np.signedinteger[Any]]
    items: NDArray[np.signedinteger[Any]]
    ratings: NDArray[np.float32]


class _Layout(NamedTuple):
    dialect: Dialect
    width: int
    header: bool
    columns: tuple[int, int, int]


def rating_file(path: Path) -> Path:
    """Return the file at `path`, or the only file in a folder.

    Raises
    ------
    DataError
        If there is no such file, or several.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist: data must be {FORMATS}, or a folder with one")
    if not path.is_dir():
        return path
    found = files_called(path, FOLDER_FILES)
    if len(found) != 1:
        has = " and ".join(file.name for file in found) or "none of them"
        raise DataError(
            f"{path} has {has}: it must have one of u.data, ratings.dat, ratings.csv (compressed: .gz, "
            f".xz, …)"
        )
    return found[0]


def rating_blocks(path: Path, *, hashed: bool = False) -> Iterator[Block]:
    """Yield the file's ratings in order. With `hashed`, users and items are not numbered.

    Raises
    ------
    DataError
        If the file cannot be read, or if a line is invalid.
    """
    with readable(path, f"it must be {FORMATS}"):
        yield from _blocks(path, hashed)


def _blocks(path: Path, hashed: bool) -> Iterator[Block]:
    layout = _layout(path)
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    shape = (layout.dialect, layout.width, layout.columns, int(layout.header))
    for line, texts in text_blocks(path, *shape):
        ratings = numbers_of(texts[2], RATINGS, path, line).astype(np.float32)
        if hashed:
            users, items = {}, {}  # the ids of a block do not depend on other blocks
        found = numbered(texts[0], users, path, line), numbered(texts[1], items, path, line)
        if hashed:
            yield Block(ids_of(users)[found[0]], ids_of(items)[found[1]], ratings)
        else:
            yield Block(*found, ratings)
    if not users:
        raise DataError(f"{path} has no ratings: it must be {FORMATS}")


def _layout(path: Path) -> _Layout:
    lines = sample_lines(path) or [""]
    first = lines[0]
    fitting: list[_Layout] = []
    problems: list[DataError] = []
    for dialect in DIALECTS:
        rows = cells_of(lines, dialect) or [[]]
        if len(rows[0]) < 2:
            continue
        try:
            header, columns = _columns(path, first, rows[0])
        except DataError as error:
            problems.append(error)
            continue
        fitting.append(_Layout(dialect, len(rows[0]), header, columns))
        if all(len(row) == len(rows[0]) and _is_number(row[columns[2]]) for row in rows[header:]):
            return fitting[-1]
    if fitting:  # only the first line fits, so the reader names the line that does not
        return fitting[0]
    if problems:
        raise problems[0]
    raise DataError(f"{path}: the first line, {first[:60]!r}, has one column: it must be {FORMATS}")


def _columns(path: Path, first: str, cells: list[str]) -> tuple[bool, tuple[int, int, int]]:
    """Return whether the first line is a header, and the columns of users, items and ratings."""
    if len(cells) < 3:
        raise DataError(
            f"{path}: the first line, {first[:60]!r}, has {len(cells)} columns: it must be {FORMATS}"
        )
    if _is_number(cells[2]):
        return False, (0, 1, 2)
    plain = [cell.strip().lower().partition(":")[0] for cell in cells]
    columns = []
    for what, known in zip(("user", "item", "rating"), NAMES, strict=True):
        named = [number for number, name in enumerate(plain) if name in known]
        if len(named) != 1:
            raise DataError(
                f"{path}: the header {first[:60]!r} names {len(named)} columns of {what}s: it must name one, "
                f"for instance {known[0]!r}"
            )
        columns.append(named[0])
    return True, (columns[0], columns[1], columns[2])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
