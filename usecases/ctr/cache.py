"""Files of Criteo rows, read once into columns on disk, which all nodes of all runs map into memory.

A folder of the cache contains the data for training, row by row: ``dense.bin`` (float32, 13 per row,
standardized), ``ids.bin`` (26 per row: int32 rows of the embedding table, or int64 hashed ids),
``labels.bin`` (uint8), and their description.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.cache import ArrayWriter, Shapes, describe_arrays, kept_arrays, read_once
from adabench.usecases.ctr.read_raw import raw_blocks
from adabench.usecases.ctr.sizes import Sizes
from adabench.usecases.ctr.table import (
    DENSE_FIELDS,
    SPARSE_FIELDS,
    Table,
    hashed_ids,
    require_both_classes,
)

FORMAT = 1
_BLOCK = 1 << 18  # number of rows that are processed together
_READ_BYTES = 1 << 22


class Columns(NamedTuple):
    """Rows in the order of their splits, mapped from files. Changes of the arrays do not change the files.

    Attributes
    ----------
    dense : (n, 13) float32
        Dense features, log-transformed and standardized by the training split.
    ids : (n, 26) int32 or int64
        Rows of the embedding table, or ids that `hashed_ids` returns.
    labels : (n,) uint8
        Labels, 1 for a click.
    sizes : Sizes
        Number of rows of each split.
    rows : int
        Number of rows that the embedding table needs; 0 with hashed ids.
    first_rows : (26,) int64
        First row of each field; 0 with hashed ids.
    fingerprint : str
        Digest of the data.
    """

    dense: NDArray[np.float32]
    ids: NDArray[np.int32] | NDArray[np.int64]
    labels: NDArray[np.uint8]
    sizes: Sizes
    rows: int
    first_rows: NDArray[np.int64]
    fingerprint: str


Blocks = Callable[[Sequence[Path]], Iterator[tuple[int, Table]]]
"""Function that yields rows of files in order, in blocks, each with the number of its file."""


def cached(
    files: Sequence[Path], what: str, blocks: Blocks | None = None, *, hashed: bool = False
) -> Columns:
    """Return the columns of files from the cache, or read them. Blocks while another process reads them.

    Parameters
    ----------
    files : sequence of Path
        One file for each split, or files whose rows are split by sevenths.
    what : str
        Name of the data for messages.
    blocks : callable, optional
        Function that reads the files; by default for raw files.
    hashed : bool
        Whether ids are hashed, instead of numbered in a pass over all of them.

    Raises
    ------
    DataError
        If a file cannot be read or used, or the cache cannot be written.
    """
    build = partial(_build, files, what, blocks or raw_blocks, hashed=hashed)
    return read_once("criteo-raw-ids" if hashed else "criteo", files, build, _open)


def _open(folder: Path) -> Columns | None:
    kept = kept_arrays(folder, FORMAT)
    if kept is None:
        return None
    return Columns(
        **kept.arrays,
        sizes=Sizes(*kept.facts["sizes"]),
        rows=kept.facts["rows"],
        first_rows=np.array(kept.facts["first_rows"], dtype=np.int64),
        fingerprint=kept.fingerprint,
    )


def _build(files: Sequence[Path], what: str, blocks: Blocks, folder: Path, hashed: bool) -> None:
    sizes = _read(blocks(files), folder, what)
    labels = np.fromfile(folder / "labels.bin", dtype=np.uint8)
    for name, part in sizes.slices().items():
        require_both_classes(labels[part], f"the {name} split of {what}")
    fingerprint = _fingerprint(folder, sizes)
    _standardise(folder, sizes)
    distinct = None if hashed else [_distinct(_field(folder, field)) for field in _FIELDS]
    _write_ids(folder, sum(sizes), distinct)
    ends = np.cumsum([0] * SPARSE_FIELDS if distinct is None else [len(values) for values in distinct])
    shapes: Shapes = {
        "dense": ("<f4", (sum(sizes), DENSE_FIELDS)),
        "ids": ("<i8" if hashed else "<i4", (sum(sizes), SPARSE_FIELDS)),
        "labels": ("u1", (sum(sizes),)),
    }
    first_rows = [0, *ends[:-1].tolist()]
    describe_arrays(
        folder, FORMAT, shapes, fingerprint, sizes=sizes, rows=int(ends[-1]), first_rows=first_rows
    )
    for field in _FIELDS:
        _field(folder, field).unlink()


_FIELDS = range(SPARSE_FIELDS)


def _read(blocks: Iterator[tuple[int, Table]], folder: Path, what: str) -> Sizes:
    counts: dict[int, int] = {}  # number of rows of each file
    with ArrayWriter(folder) as output:
        for index, block in blocks:
            counts[index] = counts.get(index, 0) + len(block.labels)
            fields = {f"field{field}": block.ids[:, field] for field in _FIELDS}
            output.append(labels=block.labels, dense=block.dense, **fields)
    return Sizes(*counts.values()) if len(counts) > 1 else Sizes.sevenths(counts[0], what)


def _fingerprint(folder: Path, sizes: Sizes) -> str:
    digest = hashlib.sha256(repr(tuple(sizes)).encode())
    for name in ("labels.bin", "dense.bin", *(f"field{field}.bin" for field in _FIELDS)):
        with (folder / name).open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _standardise(folder: Path, sizes: Sizes) -> None:
    """Standardize to mean 0 and deviation 1 of the training split, as `table.standardise` does."""
    path = folder / "dense.bin"

    def training() -> Iterator[NDArray[np.float32]]:
        with path.open("rb") as file:
            for start, stop in _blocks(sizes.train):
                yield _dense(file, stop - start)

    mean = sum(block.sum(axis=0, dtype=np.float64) for block in training()) / sizes.train
    squares = sum(((block - mean) ** 2).sum(axis=0) for block in training()) / sizes.train
    std = np.sqrt(squares)
    with path.open("rb") as before, path.open("r+b") as after:
        for start, stop in _blocks(sum(sizes)):
            block = _dense(before, stop - start)
            ((block - mean) / np.where(std > 0, std, 1)).astype(np.float32).tofile(after)


def _dense(file: IO[bytes], rows: int) -> NDArray[np.float32]:
    return np.fromfile(file, np.float32, rows * DENSE_FIELDS).reshape(rows, DENSE_FIELDS)


def _distinct(file: Path) -> NDArray[np.int64]:
    """Return the distinct values of a file, ascending, like `numpy.unique`, but with less memory."""
    values = np.fromfile(file, dtype=np.int64)
    values.sort()
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def _write_ids(folder: Path, count: int, distinct: Sequence[NDArray[np.int64]] | None) -> None:
    """Write the rows of the embedding table for the ids, as `table.row_ids` numbers them, or hashed ids."""
    with ExitStack() as files:
        # The files are read, not mapped, because mapped pages count as memory of the process as long as there
        # is space.
        columns = [files.enter_context(_field(folder, field).open("rb")) for field in _FIELDS]
        output = files.enter_context((folder / "ids.bin").open("wb"))
        for start, stop in _blocks(count):
            ids = np.stack([np.fromfile(column, np.int64, stop - start) for column in columns], axis=1)
            (hashed_ids(ids) if distinct is None else _numbered(ids, distinct)).tofile(output)


def _numbered(ids: NDArray[np.int64], distinct: Sequence[NDArray[np.int64]]) -> NDArray[np.int32]:
    rows, first = np.empty(ids.shape, dtype=np.int32), 0
    for field, values in enumerate(distinct):
        rows[:, field] = np.searchsorted(values, ids[:, field]) + first
        first += len(values)
    return rows


def _field(folder: Path, field: int) -> Path:
    return folder / f"field{field}.bin"


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK))
