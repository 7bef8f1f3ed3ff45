"""Exports of `adaps.Node.export`, read without a node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["load_export"]


def load_export(
    directory: str | os.PathLike[str], tables: Sequence[str] | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """Read the newest export of a directory: all rows of its tables, whichever files they are in.

    It may be called while a job exports to the directory, and needs none.

    Parameters
    ----------
    directory : path
        As it was given to `Node.export`.
    tables : sequence of str, optional
        Which tables, by their names. Default: all that were exported.

    Returns
    -------
    dict of str to float32 array
        By the tables' names, in their order; of shape (rows, length).

    Raises
    ------
    CheckpointError
        If there is no complete export in the directory, or a file is damaged or cannot be read.
    KeyError
        Naming a table that was not exported.
    TypeError
        If `tables` is one name, or there is none in it.
    """
    from adaps.checkpoint import export_reader

    return export_reader.load(Path(directory), tables)
