"""Reads preprocessed Criteo in blocks: `.npy` files of labels, log-transformed dense features and ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.npy_errors import UNREADABLE_ARRAYS, why
from adabench.usecases.ctr.table import DENSE_FIELDS, SPARSE_FIELDS, Table
from adabench.usecases.interface import DataError

LABELS = "sampled_labels.npy"
DENSE = "sampled_dense_feats.npy"
SPARSE = "sampled_sparse_feats.npy"
LARGEST = float(np.finfo(np.float32).max)
ROWS_AT_ONCE = 1 << 16


def npy_files(folder: Path) -> list[Path]:
    """Return the three files of a folder, which must all exist."""
    files = [folder / name for name in (LABELS, DENSE, SPARSE)]
    for path in files:
        if not path.is_file():
            raise DataError(f"{path} is missing: the folder must hold {LABELS}, {DENSE} and {SPARSE}")
    return files


def npy_blocks(files: Sequence[Path]) -> Iterator[tuple[int, Table]]:
    """Yield rows of `npy_files` in blocks, each with the number 0, because they belong to one data set.

    Parameters
    ----------
    files : sequence of Path
        Files ``sampled_labels.npy`` (n,), ``sampled_dense_feats.npy`` (n, 13), already log-transformed, and
        ``sampled_sparse_feats.npy`` (n, 26).

    Raises
    ------
    DataError
        If a file is truncated, has the wrong dtype or shape, or contains an invalid value.
    """
    of_labels, of_dense, of_ids = files
    all_labels = _opened(of_labels, "iub", "integers", None)
    all_dense = _opened(of_dense, "f", "floats", DENSE_FIELDS)
    all_ids = _opened(of_ids, "iu", "integers", SPARSE_FIELDS)
    for path, array in ((of_dense, all_dense), (of_ids, all_ids)):
        if len(array) != len(all_labels):
            raise DataError(f"{path} has {len(array)} rows: it must have {len(all_labels)}, as {LABELS} has")
    for start in range(0, len(all_labels), ROWS_AT_ONCE):
        labels, dense, ids = (
            array[start : start + ROWS_AT_ONCE] for array in (all_labels, all_dense, all_ids)
        )
        _refuse(of_labels, start, labels, (labels != 0) & (labels != 1), "a label must be 0 or 1")
        bad = ~(np.abs(dense) <= LARGEST)
        _refuse(of_dense, start, dense, bad, "a dense feature must be a finite number")
        _refuse(of_ids, start, ids, ids < 0, "an id must be zero or more")
        yield 0, Table(labels.astype(np.uint8), dense.astype(np.float32), ids.astype(np.int64))


def _opened(path: Path, kinds: str, what: str, columns: int | None) -> NDArray[Any]:
    """Return an array that is mapped from its file."""
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
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


def _refuse(path: Path, start: int, array: NDArray[Any], bad: NDArray[np.bool_], what: str) -> None:
    if bad.any():
        place = tuple(int(index) for index in np.argwhere(bad)[0])
        row = [start + place[0], *place[1:]]
        raise DataError(f"{path} holds {array[place]} at {row}: {what}")
