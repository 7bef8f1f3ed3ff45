"""What the files of checkpoints and exports hold: rows of tables, and what workers want to be kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adaps import _core
from adaps.checkpoint import safetensors_file
from adaps.checkpoint.manifests import ExportedTable, File, TableEntry
from adaps.errors import CheckpointError
from adaps.tables import Table

__all__ = [
    "load_table",
    "merge",
    "read_extra",
    "split_extra",
    "verify",
    "verify_rows",
    "write_changed",
    "write_extra",
    "write_table",
]

CHUNK_BYTES = 1 << 22
"""Of rows in memory at a time."""

_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def write_table(core: _core.Node, index: int, table: Table, folder: Path, rank: int) -> File | None:
    """Write the rows of a table that a node owns; None if it owns none."""
    owned = _core.count_owned(core, index)
    if owned == 0:
        return None
    path = folder / _table_file(index, rank)
    state_length = _core.state_length(core, index)
    chunk = _Chunk(table.length, state_length)
    with safetensors_file.Writer(
        path, _shapes(owned, table.length, state_length), {"table": table.name}
    ) as writer:
        first, written = 0, 0
        while first < table.rows and written <= owned:
            taken, first = _core.take_owned(core, index, first, chunk.rows, chunk.values, chunk.state)
            written += taken
            if written <= owned:
                for name, array in chunk.arrays.items():
                    writer.append(name, array[:taken])
        if written != owned:
            raise CheckpointError(
                f"rows of the table {table.name!r} came or went while they were written: a worker used the "
                "node during the checkpoint"
            )
    return File(path.name, writer.bytes, writer.checksums, rank, table=table.name, rows=owned)


def write_changed(
    changed: _core.ChangedRows, count: int, index: int, table: Table, folder: Path, rank: int
) -> File | None:
    """Write so many rows of a table that were copied for an export; None if there are none."""
    if count == 0:
        return None
    path = folder / _table_file(index, rank)
    chunk = _Chunk(table.length, 0)
    with safetensors_file.Writer(
        path, _exported_shapes(count, table.length), {"table": table.name}
    ) as writer:
        for first in range(0, count, len(chunk.rows)):
            rows, values = (array[: count - first] for array in (chunk.rows, chunk.values))
            changed.read(first, rows, values)
            writer.append("rows", rows)
            writer.append("values", values)
    return File(path.name, writer.bytes, writer.checksums, rank, table=table.name, rows=count)


def merge(
    folder: Path,
    file: File,
    table: ExportedTable,
    values: npt.NDArray[np.float32],
    there: npt.NDArray[np.bool_],
) -> None:
    """Read rows of an export's file to their places, and note that they are there.

    Raises
    ------
    CheckpointError
        Unless the file is whole and fits the table.
    """
    path = folder / file.name
    header = safetensors_file.verify(path, file.bytes, file.checksums)
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in header.tensors.items()}
    if found != (shapes := _exported_shapes(file.rows, table.length)):
        raise CheckpointError(f"{path} holds {found}, where the table {table.name!r} needs {shapes}")
    chunk = _Chunk(table.length, 0)
    with safetensors_file.Reader(path) as reader:
        for first in range(0, file.rows, len(chunk.rows)):
            rows, read = (array[: file.rows - first] for array in (chunk.rows, chunk.values))
            reader.read_into("rows", 8 * first, rows)
            reader.read_into("values", 4 * table.length * first, read)
            if len(wrong := rows[(rows < 0) | (rows >= table.rows)]):
                raise CheckpointError(
                    f"{path} does not fit: row {wrong[0]} does not exist in table {table.name!r}: rows are 0 "
                    f"to {table.rows - 1}"
                )
            values[rows] = read
            there[rows] = True


def verify(folder: Path, file: File, entry: TableEntry | None) -> None:
    """Raise CheckpointError unless a file is whole, and fits the table that it has rows of."""
    header = safetensors_file.verify(folder / file.name, file.bytes, file.checksums)
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in header.tensors.items()}
    if entry is not None and found != (shapes := _shapes(file.rows, entry.length, entry.state_length)):
        raise CheckpointError(f"{folder / file.name} holds {found}, where the table needs {shapes}")


def verify_rows(folder: Path, table: Table, files: Iterable[File]) -> None:
    """Raise CheckpointError unless each row of a checkpoint's files exists, and is there once."""
    seen = np.zeros(table.rows, np.bool_)
    chunk = np.empty(max(1, CHUNK_BYTES // 8), np.int64)
    for file in files:
        with safetensors_file.Reader(folder / file.name) as reader:
            for first in range(0, file.rows, len(chunk)):
                rows = chunk[: min(len(chunk), file.rows - first)]
                reader.read_into("rows", 8 * first, rows)
                if len(wrong := rows[(rows < 0) | (rows >= table.rows)]):
                    raise CheckpointError(
                        f"{reader.path} does not fit: row {wrong[0]} does not exist in table {table.name!r}: "
                        f"rows are 0 to {table.rows - 1}"
                    )
                sorted_rows = np.sort(rows)
                twice = np.concatenate(
                    (rows[seen[rows]], sorted_rows[1:][sorted_rows[1:] == sorted_rows[:-1]])
                )
                if len(twice):
                    raise CheckpointError(
                        f"{reader.path} does not fit: row {twice[0]} of table {table.name!r} is there twice"
                    )
                seen[rows] = True


def load_table(
    core: _core.Node, index: int, table: Table, folder: Path, files: Iterable[File]
) -> _core.TableRestore:
    """Read the rows of a table that a node owns from a checkpoint's files; `finish` writes them."""
    restore = _core.TableRestore(core, index)
    chunk = _Chunk(table.length, _core.state_length(core, index))
    for file in files:
        with safetensors_file.Reader(folder / file.name) as reader:
            for first in range(0, file.rows, len(chunk.rows)):
                count = min(len(chunk.rows), file.rows - first)
                for name, array in chunk.arrays.items():
                    reader.read_into(name, first * array[:1].nbytes, array[:count])
                try:
                    restore.put(chunk.rows[:count], chunk.values[:count], chunk.state[:count])
                except (ValueError, IndexError) as error:
                    raise CheckpointError(f"{reader.path} does not fit: {error}") from error
    return restore


def split_extra(extra: Mapping[str, Any]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Arrays, and what JSON can hold; TypeError names what is neither."""
    arrays = {name: value for name, value in extra.items() if isinstance(value, np.ndarray)}
    values = {name: value for name, value in extra.items() if name not in arrays}
    for name, array in arrays.items():
        if name.encode(errors="ignore").decode() != name:
            raise TypeError(f"extra[{name!r}] has a name that is no text: it cannot be encoded as UTF-8")
        if array.dtype.type not in _DTYPES.values() or name in ("__metadata__", safetensors_file.HEADER):
            raise TypeError(f"extra[{name!r}] is an array of {array.dtype}: it must be of plain numbers")
    for name, value in values.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"extra[{name!r}] is a {type(value).__name__}: it must be a NumPy array, or what JSON holds "
                f"({error})"
            ) from None
    return arrays, values


def write_extra(
    folder: Path, rank: int, worker: int, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]
) -> File:
    """Write what a worker wants to be kept."""
    path = folder / f"extra-rank-{rank:04d}-worker-{worker:04d}.safetensors"
    shapes = {name: (_dtype_name(array), array.shape) for name, array in arrays.items()}
    with safetensors_file.Writer(path, shapes, {"values": json.dumps(values)}) as writer:
        for name, array in arrays.items():
            writer.append(name, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return File(path.name, writer.bytes, writer.checksums, rank, worker=worker)


def read_extra(path: Path) -> dict[str, Any]:
    """What `write_extra` wrote."""
    with safetensors_file.Reader(path) as reader:
        try:
            extra = dict(json.loads(reader.header.metadata["values"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"{path} has damaged metadata: {error}") from error
        for name, tensor in reader.header.tensors.items():
            if tensor.dtype not in _DTYPES:
                raise CheckpointError(f"{path}: the tensor {name!r} is of the unknown dtype {tensor.dtype!r}")
            try:
                array: npt.NDArray[Any] = np.empty(tensor.shape, _DTYPES[tensor.dtype])
            except (ValueError, OverflowError) as error:  # no elements, but impossible dimensions
                raise CheckpointError(f"{path}: the tensor {name!r} is no array: {error}") from error
            reader.read_into(name, 0, array.reshape(-1).view(np.uint8))
            extra[name] = array
    return extra


def _dtype_name(array: npt.NDArray[Any]) -> str:
    return next(name for name, dtype in _DTYPES.items() if array.dtype.type is dtype)


def _table_file(index: int, rank: int) -> str:
    return f"table-{index:04d}-rank-{rank:04d}.safetensors"


def _exported_shapes(rows: int, length: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {"rows": ("I64", (rows,)), "values": ("F32", (rows, length))}


def _shapes(rows: int, length: int, state_length: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        "rows": ("I64", (rows,)),
        "values": ("F32", (rows, length)),
        "state": ("F32", (rows, state_length)),
    }


class _Chunk:
    """Memory for some rows."""

    def __init__(self, length: int, state_length: int) -> None:
        count = max(1, CHUNK_BYTES // (8 + 4 * (length + state_length)))
        self.rows = np.empty(count, np.int64)
        self.values = np.empty((count, length), np.float32)
        self.state = np.empty((count, state_length), np.float32)

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """By their names in the files."""
        return {"rows": self.rows, "values": self.values, "state": self.state}
