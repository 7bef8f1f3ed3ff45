"""Checkpoints: what all nodes hold, in files, complete or invisible.

A directory holds one checkpoint: a numbered manifest, and the files that it names in the folder that it
names. The next one is written to a folder of its own; then its manifest gets the next number, in one step,
and the old one goes. So what the manifest names is complete at any moment, whatever an earlier job does that
has not noticed yet that another one took over.

The files are in the safetensors format. Each node writes, for each table, the rows that it owns: ``rows``
(int64), ``values`` (float32, one row each) and ``state`` (float32, of the optimizer). Rows that nobody ever
touched are not written: they begin as the table's initializer says, in any run. Each worker can add arrays
and values of its own.
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
    """Whether a directory holds a checkpoint, which `adaps.Node.restore` can read.

    Parameters
    ----------
    directory : path
        It need not exist.

    Raises
    ------
    CheckpointError
        If there is one, but it cannot be read or is damaged.
    """
    edition = editions.newest(Path(directory), CHECKPOINTS)
    return edition is not None and edition.content is not None
