"""Reads columns of text files in blocks, by pyarrow, and numbers what they name."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_line", "numbered", "open_bytes", "text_blocks"]

_BLOCK_BYTES = 1 << 22


def open_bytes(path: Path) -> IO[bytes]:
    """A file, unpacked if its name ends in ``.gz``."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def first_line(path: Path) -> str:
    """The first line without its end, empty if the file is."""
    with open_bytes(path) as file:
        return file.readline(1 << 16).decode("utf-8-sig").rstrip("\r\n")


def text_blocks(
    path: Path, separator: str, width: int, columns: Sequence[int], skipped: int, quoted: bool = False
) -> Iterator[tuple[int, list[Any]]]:
    """Some columns of a file, as pyarrow's arrays of texts, block by block.

    Parameters
    ----------
    path : Path
        A text file, packed if it ends in ``.gz``.
    separator : str
        One character, or the same one several times.
    width : int
        How many columns each line has.
    columns : sequence of int
        Which ones are wanted.
    skipped : int
        Lines at the beginning that are not read.
    quoted : bool
        Whether cells may be in double quotes.

    Yields
    ------
    line : int
        Number of the block's first line, from 1.
    texts : list of pyarrow.Array
        One for each of `columns`.

    Raises
    ------
    OSError, EOFError, zlib.error, ValueError
        If the file cannot be read, or a line has another number of columns.
    """
    import pyarrow as pa  # loads slowly, and nothing that is in the cache needs it
    from pyarrow import csv

    # Two separators have an empty column between them.
    step = len(separator)
    names = [str(number) for number in range((width - 1) * step + 1)]
    wanted = [names[column * step] for column in columns]
    line = 1 + skipped
    with open_bytes(path) as file:
        reader = csv.open_csv(
            pa.PythonFile(file, mode="r"),
            read_options=csv.ReadOptions(column_names=names, skip_rows=skipped, block_size=_BLOCK_BYTES),
            parse_options=csv.ParseOptions(
                delimiter=separator[0], quote_char='"' if quoted else False, ignore_empty_lines=False
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=wanted,
                strings_can_be_null=False,
            ),
        )
        for batch in reader:
            if batch.num_rows:
                yield line, [batch.column(number) for number in range(len(wanted))]
                line += batch.num_rows


def numbered(column: Any, numbers: dict[str, int]) -> NDArray[np.int32]:
    """Numbers of an array of texts; texts that `numbers` has not get the next ones, and are added to it."""
    coded = column.dictionary_encode()
    known = [numbers.setdefault(text, len(numbers)) for text in coded.dictionary.to_pylist()]
    found: NDArray[np.int32] = np.array(known, dtype=np.int32)[coded.indices.to_numpy()]
    return found
