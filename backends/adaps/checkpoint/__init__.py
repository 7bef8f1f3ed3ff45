"""Checkpoints: the tables of all nodes in files, complete or invisible.

A directory contains one checkpoint: a numbered manifest, and the files that it names in the folder that it
names. The next checkpoint is written to a new folder. Then its manifest gets the next number, in one step,
and the old checkpoint is removed. Therefore the files of the manifest are complete at any moment, even while
an earlier job has not noticed yet that another one took over.

The files are in the safetensors format. Each node writes, for each table, the rows that it owns: ``rows``
(int64), ``values`` (float32, one row each) and ``state`` (float32, of the optimizer). Rows that were never
used are not written: in any run, the table's initializer gives them. Each worker can add arrays and values.
"""

from __future__ import annotations

import os
from pathlib import Path

from adaps.checkpoint import editions
from adaps.checkpoint.checkpoint_worker import CheckpointWorker, Restored
from adaps.checkpoint.manifests import CHECKPOINTS
from adaps.checkpoint.table_export import Export

__all__ = ["CheckpointWorker", "Export", "Restored", "exists"]


def exists(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory contains a checkpoint, which `adaps.Node.restore` can read.

    Parameters
    ----------
    directory : path
        Directory of the checkpoint, which need not exist.

    Raises
    ------
    CheckpointError
        If there is a checkpoint, but it cannot be read or is damaged.
    """
    edition = editions.newest(Path(directory), CHECKPOINTS)
    return edition is not None and edition.content is not None
