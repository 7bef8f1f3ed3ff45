"""Contents of the files of checkpoints and exports: rows of tables, and values that workers add."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adaps import _core
from adaps.checkpoint import safetensors_file
from adaps.checkpoint.manifests import ExportedTable, File, TableEntry
from adaps.checkpoint.safetensors_file import DTYPES
from adaps.errors import CheckpointError
from adaps.tables import Table

__all__ = [
    "load_table",
    "merge",
    "read_extra",
    "read_ids",
    "split_extra",
    "verify",
    "verify_rows",
    "write_changed",
    "write_extra",
    "write_table",
]

_DELETED = "deleted"
"""Name of the tensor with the ids that an export deletes."""

CHUNK_BYTES = 1 << 22
"""Maximum size of rows that are in memory at a time."""


def write_table(core: _core.Node, index: int, table: Table, folder: Path, rank: int) -> File | None:
    """Write the rows of a table that a node owns. Returns None if it owns none."""
    owned = _core.count_owned(core, index)
    if owned == 0:
        return None
    path = folder / _table_file(index, rank)
    chunk = _Chunk(table.keys, table.length, _core.state_length(core, index))
    with safetensors_file.Writer(path, chunk.shapes(owned), {"table": table.name}) as writer:
        first, written = 0, 0
        while first < table.rows and written <= owned:
            taken, first = _core.take_owned(core, index, first, chunk.rows, chunk.values, chunk.state)
            written += taken
            if written <= owned:
                for name, array in chunk.arrays.items():
                    writer.append(name, array[:taken])
        if written != owned:
            raise CheckpointError(
                f"rows of the table {table.name!r} were added or removed while they were written: "
                "a worker used the node during the checkpoint"
            )
    return File(path.name, writer.bytes, writer.checksums, rank, table=table.name, rows=owned)


def write_changed(
    changed: _core.ChangedRows, count: int, index: int, table: Table, folder: Path, rank: int
) -> File | None:
    """Write `count` rows of a table that were copied for an export, and the ids that were deleted since.

    Returns None if there are none.
    """
    deleted = changed.deleted()
    if count == 0 and len(deleted) == 0:
        return None
    path = folder / _table_file(index, rank)
    chunk = _Chunk(table.keys, table.length)
    shapes = {**chunk.shapes(count), **_shape_of_deleted(len(deleted))}
    with safetensors_file.Writer(path, shapes, {"table": table.name}) as writer:
        for first, size in chunk.pieces_of(count):
            rows, values = chunk.rows[:size], chunk.values[:size]
            changed.read(first, rows, values)
            writer.append(chunk.name_of_rows, rows)
            writer.append("values", values)
        if len(deleted):
            writer.append(_DELETED, deleted)
    return File(
        path.name, writer.bytes, writer.checksums, rank, table=table.name, rows=count, deleted=len(deleted)
    )


def _shape_of_deleted(count: int) -> safetensors_file.Shapes:
    return {_DELETED: ("I64", (count,))} if count else {}


def merge(
    folder: Path,
    file: File,
    table: ExportedTable,
    values: npt.NDArray[np.float32],
    there: npt.NDArray[np.bool_],
) -> None:
    """Read rows of an export's file into `values`, and mark them as read in `there`.

    Raises
    ------
    CheckpointError
        If the file is incomplete or does not fit the table.
    """
    chunk = _Chunk(table.keys, table.length)
    _verify(folder, file, table.name, chunk.shapes(file.rows))
    for path, count in chunk.read(folder, file):
        rows = chunk.rows[:count]
        _check_rows_exist(path, rows, table)
        values[rows] = chunk.values[:count]
        there[rows] = True


def read_ids(
    folder: Path, file: File, table: ExportedTable
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the ids of an export's file, their values, and the ids that it deletes.

    Raises
    ------
    CheckpointError
        If the file is incomplete or does not fit the table.
    """
    chunk = _Chunk(table.keys, table.length)
    _verify(folder, file, table.name, {**chunk.shapes(file.rows), **_shape_of_deleted(file.deleted)})
    ids = np.empty(file.rows, np.int64)
    values = np.empty((file.rows, table.length), np.float32)
    first = 0
    for _, count in chunk.read(folder, file):
        ids[first : first + count] = chunk.rows[:count]
        values[first : first + count] = chunk.values[:count]
        first += count
    deleted = np.empty(file.deleted, np.int64)
    if file.deleted:
        with safetensors_file.Reader(folder / file.name) as reader:
            reader.read_into(_DELETED, 0, deleted)
    return ids, values, deleted


def verify(folder: Path, file: File, entry: TableEntry | None) -> None:
    """Raise CheckpointError unless a file is complete and fits its table."""
    if entry is None:
        safetensors_file.verify(folder / file.name, file.bytes, file.checksums)
    else:
        chunk = _Chunk(entry.keys, entry.length, entry.state_length)
        _verify(folder, file, entry.name, chunk.shapes(file.rows))


def _verify(folder: Path, file: File, table: str, shapes: safetensors_file.Shapes) -> None:
    header = safetensors_file.verify(folder / file.name, file.bytes, file.checksums)
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in header.tensors.items()}
    if found != shapes:
        raise CheckpointError(f"{folder / file.name} holds {found}, where the table {table!r} needs {shapes}")


def verify_rows(folder: Path, table: Table, files: Iterable[File]) -> None:
    """Raise CheckpointError unless all rows of a checkpoint's files exist and none occurs twice."""
    if table.keys is not None:
        _verify_ids(folder, table, files)
        return
    seen = np.zeros(table.rows, np.bool_)
    chunk = _Chunk(table.keys)
    for file in files:
        for path, count in chunk.read(folder, file):
            rows = chunk.rows[:count]
            _check_rows_exist(path, rows, table)
            ordered = np.sort(rows)
            twice = np.concatenate((rows[seen[rows]], ordered[1:][ordered[1:] == ordered[:-1]]))
            if len(twice):
                raise CheckpointError(
                    f"{path} does not fit: row {twice[0]} of table {table.name!r} is there twice"
                )
            seen[rows] = True


def _verify_ids(folder: Path, table: Table, files: Iterable[File]) -> None:
    chunk = _Chunk(table.keys)
    pieces = [chunk.rows[:count].copy() for file in files for _, count in chunk.read(folder, file)]
    ordered = np.sort(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)
    if len(twice := ordered[1:][ordered[1:] == ordered[:-1]]):
        raise CheckpointError(f"{folder} does not fit: id {twice[0]} of table {table.name!r} is there twice")


def _check_rows_exist(path: Path, rows: npt.NDArray[np.int64], table: Table | ExportedTable) -> None:
    if len(wrong := rows[(rows < 0) | (rows >= table.rows)]):
        raise CheckpointError(
            f"{path} does not fit: row {wrong[0]} does not exist in table {table.name!r}: rows are 0 to "
            f"{table.rows - 1}"
        )


def load_table(
    core: _core.Node, index: int, table: Table, folder: Path, files: Iterable[File]
) -> _core.TableRestore:
    """Read the rows of a table that a node owns from a checkpoint's files. `finish` writes them."""
    restore = _core.TableRestore(core, index)
    chunk = _Chunk(table.keys, table.length, _core.state_length(core, index))
    for file in files:
        for path, count in chunk.read(folder, file):
            try:
                restore.put(chunk.rows[:count], chunk.values[:count], chunk.state[:count])
            except (ValueError, IndexError) as error:
                raise CheckpointError(f"{path} does not fit: {error}") from error
    return restore


def split_extra(extra: Mapping[str, Any]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Divide values into arrays and JSON values; TypeError names a value that is neither."""
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        raise TypeError(f"extra is {extra!r}; it must be a mapping of strings to values")
    arrays = {name: value for name, value in extra.items() if isinstance(value, np.ndarray)}
    values = {name: value for name, value in extra.items() if name not in arrays}
    for name, array in arrays.items():
        if name.encode(errors="ignore").decode() != name:
            raise TypeError(f"extra[{name!r}] has a name that cannot be encoded as UTF-8")
        if name in ("__metadata__", safetensors_file.HEADER):
            raise TypeError(f"extra[{name!r}] has a name that the format uses: give the array another one")
        if array.dtype.type not in DTYPES.values():
            raise TypeError(f"extra[{name!r}] is an array of {array.dtype}: it must be of plain numbers")
    for name, value in values.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"extra[{name!r}] is a {type(value).__name__}: it must be a NumPy array or a value "
                f"that JSON can hold ({error})"
            ) from None
    return arrays, values


def write_extra(
    folder: Path, rank: int, worker: int, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]
) -> File:
    """Write the values that a worker adds to a checkpoint."""
    path = folder / f"extra-rank-{rank:04d}-worker-{worker:04d}.safetensors"
    shapes = {name: (_dtype_name(array), array.shape) for name, array in arrays.items()}
    with safetensors_file.Writer(path, shapes, {"values": json.dumps(values)}) as writer:
        for name, array in arrays.items():
            writer.append(name, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return File(path.name, writer.bytes, writer.checksums, rank, worker=worker)


def read_extra(path: Path) -> dict[str, Any]:
    """Return the values that `write_extra` wrote."""
    with safetensors_file.Reader(path) as reader:
        try:
            extra = dict(json.loads(reader.header.metadata["values"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"{path} has damaged metadata: {error}") from error
        for name, tensor in reader.header.tensors.items():
            if tensor.dtype not in DTYPES:
                raise CheckpointError(f"{path}: the tensor {name!r} has the unknown dtype {tensor.dtype!r}")
            try:
                array: npt.NDArray[Any] = np.empty(tensor.shape, DTYPES[tensor.dtype])
            except (ValueError, OverflowError) as error:  # no elements, but impossible dimensions
                raise CheckpointError(f"{path}: the tensor {name!r} is not an array: {error}") from error
            reader.read_into(name, 0, array.reshape(-1).view(np.uint8))
            extra[name] = array
    return extra


def _dtype_name(array: npt.NDArray[Any]) -> str:
    return next(name for name, dtype in DTYPES.items() if array.dtype.type is dtype)


def _table_file(index: int, rank: int) -> str:
    return f"table-{index:04d}-rank-{rank:04d}.safetensors"


class _Chunk:
    """Memory for some rows of a table, to write and read its files in pieces.

    Parameters
    ----------
    keys : str or None
        Kind of the table's ids. Without it, rows are identified by their numbers.
    length : int, optional
        Number of floats of a value. Without it, only row numbers or ids are read.
    state_length : int, optional
        Number of floats of an optimizer state. Without it, there is no state, as in exports.
    """

    def __init__(self, keys: str | None, length: int | None = None, state_length: int | None = None) -> None:
        count = max(1, CHUNK_BYTES // (8 + 4 * ((length or 0) + (state_length or 0))))
        self.rows = np.empty(count, np.int64)
        self.values = np.empty((count, length or 0), np.float32)
        self.state = np.empty((count, state_length or 0), np.float32)
        self.name_of_rows = "rows" if keys is None else "ids"
        self.arrays: dict[str, npt.NDArray[Any]] = {self.name_of_rows: self.rows}
        """Arrays by the names of their tensors."""
        if length is not None:
            self.arrays["values"] = self.values
        if state_length is not None:
            self.arrays["state"] = self.state

    def shapes(self, rows: int) -> safetensors_file.Shapes:
        """Return the tensors of a file that contains `rows` rows."""
        return {name: (_dtype_name(array), (rows, *array.shape[1:])) for name, array in self.arrays.items()}

    def pieces_of(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yield the first row and the number of rows of each piece of `rows` rows."""
        for first in range(0, rows, len(self.rows)):
            yield first, min(len(self.rows), rows - first)

    def read(self, folder: Path, file: File) -> Iterator[tuple[Path, int]]:
        """Fill the arrays with each piece of a file in turn. Yields the path and the number of rows."""
        with safetensors_file.Reader(folder / file.name) as reader:
            for first, count in self.pieces_of(file.rows):
                for name, array in self.arrays.items():
                    reader.read_into(name, first * array[:1].nbytes, array[:count])
                yield reader.path, count
