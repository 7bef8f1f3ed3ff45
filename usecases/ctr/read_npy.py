"""Reads preprocessed Criteo: three `.npy` files with labels, log-transformed dense features and ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.ctr.table import DENSE_FIELDS, SPARSE_FIELDS, Table
from adabench.usecases.damaged import UNREADABLE_ARRAYS, why
from adabench.usecases.protocol import DataError

LABELS = "sampled_labels.npy"
DENSE = "sampled_dense_feats.npy"
SPARSE = "sampled_sparse_feats.npy"
LARGEST = float(np.finfo(np.float32).max)


def read_npy(folder: Path) -> Table:
    """Read the three files of a folder.

    Parameters
    ----------
    folder : Path
        Holds ``sampled_labels.npy`` (n,), ``sampled_dense_feats.npy`` (n, 13), already log-transformed, and
        ``sampled_sparse_feats.npy`` (n, 26).

    Raises
    ------
    DataError
        If a file is missing, truncated, of the wrong dtype or shape, or holds a value that cannot be used.
    """
    labels = _load(folder / LABELS, "iub", "integers", None)
    dense = _load(folder / DENSE, "f", "floats", DENSE_FIELDS)
    ids = _load(folder / SPARSE, "iu", "integers", SPARSE_FIELDS)
    for path, array in ((folder / DENSE, dense), (folder / SPARSE, ids)):
        if len(array) != len(labels):
            raise DataError(f"{path} has {len(array)} rows: it must have {len(labels)}, as {LABELS} has")
    _refuse(folder / LABELS, labels, (labels != 0) & (labels != 1), "a label must be 0 or 1")
    _refuse(folder / DENSE, dense, ~(np.abs(dense) <= LARGEST), "a dense feature must be a finite number")
    _refuse(folder / SPARSE, ids, ids < 0, "an id must be zero or more")
    return Table(labels.astype(np.uint8), dense.astype(np.float32), ids.astype(np.int64))


def _load(path: Path, kinds: str, what: str, columns: int | None) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the folder must hold {LABELS}, {DENSE} and {SPARSE}") from None
    except UNREADABLE_ARRAYS as error:
        raise DataError(f"{path} cannot be read ({why(error)}): it must be a complete .npy file") from error
    shape = "(n,)" if columns is None else f"(n, {columns})"
    if array.dtype.kind not in kinds:
        raise DataError(f"{path} has dtype {array.dtype}: it must hold {what}")
    if array.ndim != (1 if columns is None else 2) or (columns is not None and array.shape[1] != columns):
        raise DataError(f"{path} has shape {array.shape}: it must be {shape}")
    if len(array) == 0:
        raise DataError(f"{path} has no rows: it must have at least 7 to be split")
    return array


def _refuse(path: Path, array: NDArray[Any], bad: NDArray[np.bool_], what: str) -> None:
    if bad.any():
        place = tuple(int(index) for index in np.argwhere(bad)[0])
        raise DataError(f"{path} holds {array[place]} at {list(place)}: {what}")
