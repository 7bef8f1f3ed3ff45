"""Criteo rows as arrays, which readers and the generator return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.interface import DataError

DENSE_FIELDS = 13
SPARSE_FIELDS = 26


class Table(NamedTuple):
    """Rows of Criteo in the order of the file.

    Attributes
    ----------
    labels : (n,) uint8
        Labels, 1 for a click, 0 otherwise.
    dense : (n, 13) float32
        Integer features, log-transformed (`log_transform`).
    ids : (n, 26) int64
        Categorical features. Only numbers of one column can be compared.
    """

    labels: NDArray[np.uint8]
    dense: NDArray[np.float32]
    ids: NDArray[np.int64]


def log_transform(counts: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return ln(1 + x) of the counts, and -1 for the few negative ones, as in common preprocessed samples."""
    logs: NDArray[np.float64] = np.where(counts < 0, -1.0, np.log1p(np.maximum(counts, 0)))
    return logs.astype(np.float32)


def standardise(dense: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return dense features, shifted and scaled to mean 0 and deviation 1 of the reference rows' features."""
    std = reference.std(axis=0, dtype=np.float64)
    centred: NDArray[np.float64] = dense - reference.mean(axis=0, dtype=np.float64)
    return (centred / np.where(std > 0, std, 1)).astype(np.float32)


def row_ids(table: Table) -> tuple[NDArray[np.int64], int]:
    """Map ids to contiguous rows of one embedding table, with one row for each distinct value of each field.

    The order of a field's values is kept. The rows of the fields follow one another.

    Returns
    -------
    ids : (n, 26) int64
        Row numbers in [0, rows).
    rows : int
        Number of rows that the embedding table needs.
    """
    import pandas as pd  # importing pandas takes longer than commands that read no data

    remapped = np.empty_like(table.ids)
    rows = 0
    for field in range(SPARSE_FIELDS):
        # Like numpy.unique with return_inverse, but with hashing, which only sorts distinct ids.
        inverse, distinct = pd.factorize(table.ids[:, field], sort=True)
        remapped[:, field] = inverse + rows
        rows += len(distinct)
    return remapped, rows


def hashed_ids(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ids (n, 26) that differ between fields, so that one table can hold all of them.

    They do not depend on the rest of the data. A number is added to the ids of each field, and sums that are
    too large wrap around. So different ids of one field always remain different, and so do ids of different
    fields between -2^58 and 2^58. Random 64-bit ids of different fields become equal as rarely as two random
    numbers are equal: with n ids, with a probability of less than n^2 / 2^65.
    """
    offsets = np.arange(SPARSE_FIELDS, dtype=np.uint64) * np.uint64(2**64 // SPARSE_FIELDS)
    return ids + offsets.view(np.int64)


def require_both_classes(labels: NDArray[np.uint8], what: str) -> None:
    """Raise `DataError` unless the labels contain clicks and non-clicks. The AUC needs both."""
    clicks = int(labels.sum())
    if clicks in (0, len(labels)):
        raise DataError(
            f"{what} has {clicks} clicks in {len(labels)} rows: it needs rows of both classes, labels 0 and 1"
        )
