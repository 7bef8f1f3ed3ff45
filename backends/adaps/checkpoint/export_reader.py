"""Reads the newest export of a directory, without a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from adaps import _argument_checks
from adaps.checkpoint import editions, table_files
from adaps.checkpoint.manifests import EXPORTS, ExportedTable, ExportManifest
from adaps.errors import CheckpointError

__all__ = ["check_names", "known_name", "load", "load_ids"]

_T = TypeVar("_T")

_MOST_TRIES = 20
"""Number of tries to read an export that another one may replace at the same time."""


def load(directory: Path, names: Sequence[str] | None) -> dict[str, npt.NDArray[np.float32]]:
    """Return all rows of tables from the newest export of a directory; see `adaps.load_export`."""
    if names is not None:
        check_names(names)

    def read(exported: ExportManifest) -> dict[str, npt.NDArray[np.float32]]:
        known = {table.name: table for table in exported.tables}
        wanted = list(known) if names is None else [known_name(name, known) for name in names]
        return {name: _merged(directory, exported, known[name]) for name in wanted}

    return _read_newest(directory, read)


def load_ids(directory: Path, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the ids and values of a table from the newest export; see `adaps.load_export_ids`."""

    def read(exported: ExportManifest) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        known = {table.name: table for table in exported.tables}
        return _merged_ids(directory, exported, known[known_name(name, known)])

    return _read_newest(directory, read)


def _read_newest(directory: Path, read: Callable[[ExportManifest], _T]) -> _T:
    """Return the result of `read` for the newest export, which may be replaced at the same time."""
    for _ in range(_MOST_TRIES):
        edition = editions.newest(directory, EXPORTS)
        if edition is None or edition.content is None:
            raise CheckpointError(
                f"{directory} holds no complete export, because it has no manifest: give a directory to "
                "which `export` has written"
            )
        try:
            return read(edition.content)
        except (CheckpointError, OSError) as error:
            if editions.newest_number(directory) == edition.number:
                if isinstance(error, OSError):
                    raise CheckpointError(f"{directory} cannot be read: {error.strerror}") from error
                raise
            # A newer edition has replaced this one, and its files may be gone, so that one is tried next.
    raise CheckpointError(f"{directory} gets new exports faster than one can be read")


def _merged(directory: Path, exported: ExportManifest, table: ExportedTable) -> npt.NDArray[np.float32]:
    if table.keys is not None:
        raise CheckpointError(
            f"{directory}: the table {table.name!r} has ids as keys; read it with adaps.load_export_ids"
        )
    try:
        values = np.empty((table.rows, table.length), np.float32)
    except (MemoryError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{directory}: there is no memory for table {table.name!r} of {table.rows} rows of {table.length}"
        ) from error
    there = np.zeros(table.rows, np.bool_)
    for part in exported.parts:
        for file in part.files:
            if file.table == table.name:
                table_files.merge(directory / part.folder, file, table, values, there)
        if not there.all():
            raise CheckpointError(
                f"{directory / part.folder} does not have row {np.argmin(there)} of table {table.name!r}"
            )
    return values


def _merged_ids(
    directory: Path, exported: ExportManifest, table: ExportedTable
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    if table.keys is None:
        raise CheckpointError(
            f"{directory}: the table {table.name!r} has rows without ids; read it with adaps.load_export"
        )
    read = [
        table_files.read_ids(directory / part.folder, file, table)
        for part in exported.parts
        for file in part.files
        if file.table == table.name
    ]
    none = np.empty((0, table.length), np.float32)
    ids = np.concatenate(
        [part for ids, _, deleted in read for part in (ids, deleted)] or [np.empty(0, np.int64)]
    )
    # Row of each id in `values`, or -1 if the file deletes the id.
    rows, first = np.full(len(ids), -1, np.int64), 0
    place = 0
    for file_ids, _, deleted in read:
        rows[place : place + len(file_ids)] = np.arange(first, first + len(file_ids))
        first += len(file_ids)
        place += len(file_ids) + len(deleted)
    values = np.concatenate([values for _, values, _ in read] or [none])
    ordered, from_end = np.unique(ids[::-1], return_index=True)  # the last entry of each id is valid
    last = rows[len(ids) - 1 - from_end]
    return ordered[last >= 0], values[last[last >= 0]]


def check_names(names: Sequence[str]) -> None:
    """Raise TypeError unless `names` has at least one name of a table."""
    if isinstance(names, str) or not names:
        raise TypeError(f"tables is {names!r}; it must be a sequence of tables' names, or None for all")


def known_name(name: str, known: Mapping[str, Any]) -> str:
    """Return the name of a table; KeyError, which names the nearest one, if it is unknown."""
    if name not in known:
        hint = _argument_checks.nearest(name, known)
        raise KeyError(f"no table {name!r}{hint}; there are {', '.join(known)}")
    return name
