"""Opens text files of any compression, encoding and CSV dialect, and reads columns in blocks by pyarrow."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import hashlib
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.interface import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Dialect(NamedTuple):
    """The way in which a line is divided into cells.

    Attributes
    ----------
    separator : str
        One or two characters between cells.
    quoted : bool
        Whether cells may be in double quotes, which then may contain the separator.
    """

    separator: str
    quoted: bool


DIALECTS = tuple(
    Dialect(separator, quoted)
    for separator, quoted in (
        *(("::", False), ("\t", False), ("\t", True), (",", True), (",", False)),
        *((";", True), (";", False), ("|", False), ("|", True), (" ", False)),
    )
)
"""Dialects in the order in which they are tried."""

SAMPLE_LINES = 100
"""Number of lines that decide how a file is read."""

PACKINGS = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
"""Endings of compressed files, in lower case. The content determines the decompression, not the name."""

UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError)
"""Exceptions that a damaged text file can raise."""


@contextmanager
def readable(path: Path, wanted: str) -> Iterator[None]:
    """Make errors of a damaged file a `DataError` with the path, the reason and what the file must be.

    Parameters
    ----------
    path : Path
        File that is read in the context.
    wanted : str
        End of the message, such as ``it must be a text``.
    """
    try:
        yield
    except DataError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{path} cannot be read ({reason}): {wanted}") from error


_BLOCK_BYTES = 1 << 22
_LONGEST_LINE = 1 << 26
_SEPARATOR = "\x1f"
"""ASCII's unit separator, which replaces a separator of two characters, as pyarrow allows only one."""


def sample_lines(path: Path) -> list[str]:
    """The lines that decide how a file is read, without empty ones at the end."""
    lines = first_lines(path, SAMPLE_LINES)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def cells_of(lines: Sequence[str], dialect: Dialect) -> list[list[str]]:
    """The cells of each line; none if lines cannot be divided in this way."""
    if not dialect.quoted:
        return [line.split(dialect.separator) for line in lines]
    try:
        return list(csv.reader(lines, delimiter=dialect.separator))
    except csv.Error:  # A quote that is not closed makes a cell of many lines, which may be too long.
        return [[] for _ in lines]


def find_dialect(
    lines: Sequence[str], fits: Callable[[list[list[str]]], bool], dialects: Sequence[Dialect] = DIALECTS
) -> Dialect | None:
    """The first dialect under which the cells of the lines fit; None if there is none.

    Dialects come first in which a cell in quotes contains the separator: nothing else explains such lines.

    Parameters
    ----------
    lines : sequence of str
        Some lines of a file (`sample_lines`), or of several files of one dialect.
    fits : callable
        Whether the cells of all lines can be those of the file.
    dialects : sequence of Dialect
        Dialects in the order in which they are tried.
    """
    explained = [
        dialect for dialect in dialects if dialect.quoted and _has_separator_in_quotes(lines, dialect)
    ]
    return next((dialect for dialect in (*explained, *dialects) if fits(cells_of(lines, dialect))), None)


def _has_separator_in_quotes(lines: Sequence[str], dialect: Dialect) -> bool:
    try:
        rows = list(csv.reader(lines, delimiter=dialect.separator, strict=True))
    except csv.Error:
        return False
    return any(dialect.separator in cell for row in rows for cell in row)


@contextmanager
def open_bytes(path: Path, file: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
    """Open a text file as UTF-8 without a byte order mark, and close it at the end.

    Parameters
    ----------
    path : Path
        Text file in UTF-8, or in UTF-16 with a byte order mark. It can be compressed with gzip, bzip2, xz or
        zstandard, or be the only file of a zip archive.
    file : binary file, optional
        The same file, already open.

    Yields
    ------
    binary file

    Raises
    ------
    OSError
        If the file cannot be opened.
    DataError
        If the file is a zip archive that does not contain exactly one file, or begins with zero bytes, as
        UTF-16 does.
    """
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb")) if file is None else file
        stream = stack.enter_context(_unpacked(path, raw))
        mark = stream.peek(4)[:4]
        if mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            stream = stack.enter_context(io.BufferedReader(_Recoded(stream)))
        elif mark.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        if b"\0" in stream.peek(1):  # the whole buffer
            raise DataError(f"{path} has zero bytes: it must be UTF-8, or UTF-16 with a byte order mark")
        yield stream


def files_called(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of a folder with one of these names, compressed or not. Case is ignored."""
    wanted = {f"{name}{packing}" for name in names for packing in PACKINGS}
    return sorted(file for file in folder.iterdir() if file.name.lower() in wanted and file.is_file())


def first_line(path: Path) -> str:
    """Return the first line without its end; empty if the file is empty."""
    return next(iter(first_lines(path, 1)), "")


def first_lines(path: Path, count: int) -> list[str]:
    """Return the first lines without their ends, at most `count` lines of at most 64 KiB each."""
    with open_bytes(path) as file:
        lines = (file.readline(1 << 16) for _ in range(count))
        return [line.decode("utf-8").rstrip("\r\n") for line in lines if line]


def text_blocks(
    path: Path,
    dialect: Dialect,
    width: int,
    columns: Sequence[int],
    skipped: int,
    file: IO[bytes] | None = None,
) -> Iterator[tuple[int, list[Any]]]:
    """Yield some columns of a file in blocks, as pyarrow's arrays of texts.

    Empty lines at the end of the file are ignored.

    Parameters
    ----------
    path : Path
        A text file that `open_bytes` can open.
    dialect : Dialect
        The way in which its lines are divided.
    width : int
        Number of columns of each line.
    columns : sequence of int
        Indices of the columns to read.
    skipped : int
        Number of lines at the beginning that are not read.
    file : binary file, optional
        The same file, already open.

    Yields
    ------
    line : int
        Number of the block's first line, counted from 1.
    texts : list of pyarrow.Array
        One array for each of `columns`.

    Raises
    ------
    OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError
        If the file cannot be read, or a line has another number of columns (`UNREADABLE`).
    """
    import pyarrow as pa  # loads slowly, and nothing that is in the cache needs it
    from pyarrow import csv as arrow

    separator = dialect.separator
    names = [str(number) for number in range(width)]
    wanted = [names[column] for column in columns]
    line = 1 + skipped
    with open_bytes(path, file) as content:
        lines = io.BufferedReader(_Lines(content, separator if len(separator) > 1 else None))
        reader = arrow.open_csv(
            pa.PythonFile(lines, mode="r"),
            read_options=arrow.ReadOptions(column_names=names, skip_rows=skipped, block_size=_BLOCK_BYTES),
            parse_options=arrow.ParseOptions(
                delimiter=separator if len(separator) == 1 else _SEPARATOR,
                quote_char='"' if dialect.quoted else False,
                ignore_empty_lines=False,
            ),
            convert_options=arrow.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=wanted,
                strings_can_be_null=False,
            ),
        )
        for batch in reader:
            if batch.num_rows:
                yield line, [batch.column(number) for number in range(len(wanted))]
                line += batch.num_rows


def ids_of(names: Iterable[str]) -> NDArray[np.int64]:
    """Ids of names: a whole number of 64 bits stays, any other text becomes a hash of 64 bits."""
    return np.array([_id_of(name) for name in names], dtype=np.int64)


def _id_of(name: str) -> int:
    if re.fullmatch(r"-?[1-9][0-9]{0,18}|0", name) and -(2**63) <= int(name) < 2**63:
        return int(name)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def numbered(column: Any, numbers: dict[str, int], path: Path, line: int) -> NDArray[np.int32]:
    """Numbers of an array of names, without spaces around them. New names are added to `numbers`.

    Raises
    ------
    DataError
        If a name is empty; `path` and `line`, the number of the first, show the place.
    """
    coded = column.dictionary_encode()
    names = [name.strip() for name in coded.dictionary.to_pylist()]
    if "" in names:
        row = coded.indices.to_pylist().index(names.index(""))
        raise DataError(f"{path}, line {line + row}: a name is empty")
    known = [numbers.setdefault(text, len(numbers)) for text in names]
    found: NDArray[np.int32] = np.array(known, dtype=np.int32)[coded.indices.to_numpy()]
    return found


class Range(NamedTuple):
    """The numbers that a column may contain.

    Attributes
    ----------
    type : str
        Name of pyarrow's type.
    low, high : float
        Least and greatest number.
    text : str
        The range in an error.
    """

    type: str
    low: float
    high: float
    text: str


def numbers_of(column: Any, allowed: Range, path: Path, line: int) -> NDArray[Any]:
    """Return an array of texts as numbers.

    Raises
    ------
    DataError
        If a text is not an allowed number; `path` and `line`, the number of the first, say where.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def numbers(texts: Any) -> NDArray[Any]:
        found: NDArray[Any] = pc.cast(pc.utf8_trim_whitespace(texts), allowed.type).to_numpy(
            zero_copy_only=False
        )
        return found

    def is_number(row: int) -> bool:
        try:
            numbers(column[row : row + 1])
        except pa.ArrowInvalid:
            return False
        return True

    try:
        values = numbers(column)
    except pa.ArrowInvalid:
        wrong = next(row for row in range(len(column)) if not is_number(row))
    else:
        outside = np.flatnonzero(~((values >= allowed.low) & (values <= allowed.high)))
        if not len(outside):
            return values
        wrong = int(outside[0])
    raise DataError(f"{path}, line {line + wrong}: {column[wrong].as_py()[:30]!r} must be {allowed.text}")


def _unpacked(path: Path, raw: IO[bytes]) -> io.BufferedReader:
    start = raw.read(6)
    raw.seek(0)
    opened: Any = raw
    if start.startswith(b"\x1f\x8b"):
        opened = gzip.GzipFile(fileobj=raw)
    elif start.startswith(b"BZh"):
        opened = bz2.BZ2File(raw)
    elif start.startswith(b"\xfd7zXZ\x00"):
        opened = lzma.LZMAFile(raw)  # noqa: SIM115
    elif start.startswith(b"\x28\xb5\x2f\xfd"):
        import pyarrow as pa

        opened = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    elif start.startswith(b"PK\x03\x04"):
        archive = zipfile.ZipFile(raw)
        members = [member for member in archive.namelist() if not member.endswith("/")]
        if len(members) != 1:
            raise DataError(f"{path} is an archive of {len(members)} files: it must contain one")
        opened = archive.open(members[0])
    return opened if isinstance(opened, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, opened))


class _Converted(io.RawIOBase):
    """A stream that converts blocks while they are read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._ready = stream, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        while not self._ready:
            block = self._stream.read(_BLOCK_BYTES)
            self._ready = self._convert(block)
            if not block and not self._ready:
                return 0
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _convert(self, block: bytes) -> bytes:
        """Return the next bytes for the reader. An empty block is the end of the stream."""
        raise NotImplementedError


class _Recoded(_Converted):
    """A stream that converts UTF-16 to UTF-8."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        self._decoder = codecs.getincrementaldecoder("utf-16")()

    def _convert(self, block: bytes) -> bytes:
        return self._decoder.decode(block, final=not block).encode()


class _Lines(_Converted):
    """A stream without empty lines at the end, and with separators of two characters replaced."""

    def __init__(self, stream: IO[bytes], separator: str | None) -> None:
        super().__init__(stream)
        self._separator, self._held = (separator or "").encode(), b""

    def _convert(self, block: bytes) -> bytes:
        text = self._held + block
        complete = text if not block else text[: text.rfind(b"\n") + 1]
        kept = complete.rstrip(b"\r\n")
        self._held = text[len(kept) :] if block else b""
        # pyarrow converts an empty line to a row of empty cells.
        if b"\n\n" in kept or b"\n\r\n" in kept:
            raise ValueError("a line before the last one is empty")
        if len(self._held) > _LONGEST_LINE:
            raise ValueError(f"a line is longer than {_LONGEST_LINE >> 20} MiB")
        if not block and text:  # adds the end of the last line
            kept += b"\n"
        return kept.replace(self._separator, _SEPARATOR.encode()) if self._separator else kept
