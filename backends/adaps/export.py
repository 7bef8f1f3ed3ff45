"""Reads exports of `adaps.Node.export`, without a node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["load_export", "load_export_ids"]


def load_export(
    directory: str | os.PathLike[str], tables: Sequence[str] | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """Return all rows of tables from the newest export of a directory, merged from all its files.

    It may be called while a job exports to the directory, and does not need the job.

    Parameters
    ----------
    directory : path
        Directory that was given to `Node.export`.
    tables : sequence of str, optional
        Names of the tables to read. Default: all exported tables.

    Returns
    -------
    dict of str to float32 array
        Array of shape (rows, length) for each table's name, in the order of the tables.

    Raises
    ------
    CheckpointError
        If there is no complete export in the directory, or a file is damaged or cannot be read, or if a table
        has ids as keys.
    KeyError
        If a table was not exported. The error names it.
    TypeError
        If `tables` is a single name, or empty.
    """
    from adaps.checkpoint import export_reader

    return export_reader.load(Path(directory), tables)


def load_export_ids(
    directory: str | os.PathLike[str], table: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the ids of a table with ``keys="int64"`` and their values, from the newest export.

    It may be called while a job exports to the directory, and does not need the job.

    Parameters
    ----------
    directory : path
        Directory that was given to `Node.export`.
    table : str
        Name of the table.

    Returns
    -------
    int64 array
        Ids to which rows were assigned, ascending.
    float32 array
        Values of these ids, of shape (ids, length).

    Raises
    ------
    CheckpointError
        If there is no complete export in the directory, or a file is damaged or cannot be read, or if the
        table has no ids.
    KeyError
        If the table was not exported.
    """
    from adaps.checkpoint import export_reader

    return export_reader.load_ids(Path(directory), table)
