"""Reads triples: OpenKE's numbers, or lines of names in any CSV dialect.

A folder of OpenKE's has ``train2id.txt``, ``valid2id.txt`` and ``test2id.txt``: the number of triples, then
lines of head, tail and relation, all numbers from 0; ``entity2id.txt`` and ``relation2id.txt`` begin with how
many of each there are. Another folder has ``train``, ``valid`` (or ``dev``) and ``test``, each ending in
``.txt``, ``.tsv`` or ``.del``, compressed or not: lines of head, relation, tail. If a folder has ``.txt`` and
``.del`` files, as LibKGE's folders do, the names in ``.txt`` files are read, and not the numbers. One file of
lines is split by a hash of the line's number.

Cells of lines are separated by tabs, commas, semicolons, vertical bars, spaces or ``::``, and may be in
double quotes: the first of these dialects under which the first lines of all files have equally many columns,
at least three. A first line that names head, relation and tail is a header, and may order them differently.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.text_columns import (
    DIALECTS,
    UNREADABLE,
    Dialect,
    Range,
    cells_of,
    files_called,
    find_dialect,
    first_line,
    first_lines,
    numbered,
    numbers_of,
    readable,
    sample_lines,
    text_blocks,
)
from adabench.usecases.interface import DataError

FORMATS = "lines of head, relation and tail, separated by tabs, commas or another separator"
TRIPLE_DIALECTS = (*DIALECTS[1:], DIALECTS[0])
"""Names often contain ``::``, so it is tried last."""
HEADERS = (("head", "h", "subject", "s"), ("relation", "r", "predicate", "p"), ("tail", "t", "object", "o"))
"""Names of the columns in a header, in lower case."""
OPENKE_FORMAT = "a count, then lines of head, tail and relation, all numbers"
OPENKE = ("train2id.txt", "valid2id.txt", "test2id.txt")
COUNTS = ("entity2id.txt", "relation2id.txt")
IDS = Range("int32", 0, (1 << 30) - 1, "a number from 0 to 2^30 - 1")
NAMES = (("train",), ("valid", "dev"), ("test",))
ENDINGS = ((".txt", ".tsv"), (".del",))
"""Endings of files of triples: files of names, and files of numbers, which are read if there are no names."""


class Files(NamedTuple):
    """The files to read: training, validation and test triples, or one of all; and OpenKE's two counts."""

    triples: tuple[Path, ...]
    counts: tuple[Path, ...]
    openke: bool


class Sizes(NamedTuple):
    """Numbers of entities, relations and triples."""

    entities: int
    relations: int


Block = NDArray[np.int32]
"""Triples (n, 3) of head, relation and tail."""


def find(path: Path) -> Files:
    """Return the files at `path`.

    Raises
    ------
    DataError
        If `path` is neither a file nor a folder with the files of one format.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist: data must be a folder of triples, or a file with {FORMATS}")
    if not path.is_dir():
        return Files((path,), (), False)
    openke = [path / name for name in OPENKE]
    if any(file.is_file() for file in openke):
        missing = [file.name for file in openke if not file.is_file()]
        if missing:
            raise DataError(f"{path} has no {missing[0]}: it must have {', '.join(OPENKE)}")
        return Files(tuple(openke), tuple(path / name for name in COUNTS if (path / name).is_file()), True)
    found = []
    named = files_called(path, [f"train{ending}" for ending in ENDINGS[0]])
    endings = ENDINGS[0] if named else ENDINGS[1]
    for names in NAMES:
        files = files_called(path, [f"{name}{ending}" for name in names for ending in endings])
        if len(files) != 1:
            has = " and ".join(file.name for file in files) or f"no {names[0]}.txt or {names[0]}.tsv"
            raise DataError(f"{path} has {has}: it must have one file each for train, valid and test")
        found.append(files[0])
    return Files(tuple(found), (), False)


def triple_blocks(files: Files, sizes: list[Sizes]) -> Iterator[tuple[int, Block]]:
    """Yield triples of the files in order, in blocks, each with the number of its file.

    After the last block, one element is appended to `sizes`.

    Raises
    ------
    DataError
        If a file cannot be read, or if a line is invalid.
    """
    entities: dict[str, int] = {}
    relations: dict[str, int] = {}
    most = [0, 0]
    dialect = TRIPLE_DIALECTS[0] if files.openke else _dialect(files.triples)
    for index, path in enumerate(files.triples):
        empty, wanted = True, OPENKE_FORMAT if files.openke else FORMATS
        with readable(path, f"it must have {wanted}"):
            blocks = _numbers(path) if files.openke else _named(path, dialect, entities, relations)
            for block in blocks:
                empty = False
                occurring = int(block[:, [0, 2]].max()) + 1, int(block[:, 1].max()) + 1
                most = [max(pair) for pair in zip(most, occurring, strict=True)]
                yield index, block
        if empty:
            raise DataError(f"{path} has no triples: it must have {wanted}")
    for file in files.counts:
        kind = COUNTS.index(file.name)
        count = _count(file)
        if count < most[kind]:
            raise DataError(f"{file} counts {count}, but number {most[kind] - 1} occurs in the triples")
        most[kind] = count
    sizes.append(Sizes(*most))


def _dialect(files: Sequence[Path]) -> Dialect:
    """The dialect of all files, as a name must be the same text in all of them."""
    try:
        samples = [sample_lines(path) for path in files]
    except UNREADABLE:  # The reader names the file that cannot be read.
        samples = []
    lines = [line for sample in samples for line in sample]

    def fits(rows: list[list[str]]) -> bool:
        return bool(rows) and len(rows[0]) >= 3 and all(len(row) == len(rows[0]) for row in rows)

    return find_dialect(lines, fits, TRIPLE_DIALECTS) or TRIPLE_DIALECTS[0]


def _named(
    path: Path, dialect: Dialect, entities: dict[str, int], relations: dict[str, int]
) -> Iterator[Block]:
    first = first_line(path)
    (cells,) = cells_of([first], dialect) or [[""]]
    if len(cells) < 3:
        raise DataError(
            f"{path}: the first line, {first[:60]!r}, has {len(cells)} columns: it must have {FORMATS}"
        )
    header = _header(cells)
    known = entities, relations, entities
    for line, texts in text_blocks(
        path, dialect, len(cells), header or (0, 1, 2), skipped=int(header is not None)
    ):
        columns = [numbered(text, names, path, line) for text, names in zip(texts, known, strict=True)]
        yield np.stack(columns, axis=1)


def _header(cells: list[str]) -> tuple[int, int, int] | None:
    """The columns of head, relation and tail if a line names each of them once; otherwise it is a triple."""
    plain = [cell.strip().lower() for cell in cells]
    named = [[number for number, name in enumerate(plain) if name in known] for known in HEADERS]
    if any(len(columns) != 1 for columns in named):
        return None
    (head,), (relation,), (tail,) = named
    return head, relation, tail


def _numbers(path: Path) -> Iterator[Block]:
    count = _count(path)
    separator = "\t" if any("\t" in line for line in first_lines(path, 2)[1:]) else " "
    found = 0
    for line, texts in text_blocks(path, Dialect(separator, False), 3, (0, 2, 1), skipped=1):
        yield np.stack([numbers_of(column, IDS, path, line) for column in texts], axis=1)
        found += len(texts[0])
    if found != count:
        raise DataError(f"{path} counts {count} triples in its first line, and has {found}")


def _count(path: Path) -> int:
    with readable(path, "its first line must be a number"):
        first = first_line(path).strip()
    if not first.isdecimal() or len(first) > 9:
        raise DataError(f"{path}: the first line, {first[:60]!r}, must be the number of lines that follow")
    return int(first)
