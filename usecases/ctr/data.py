"""The data of a run: found, read or generated, split, and prepared for training.

``--data`` may name

* a folder with the three files of `npy_files`;
* a folder with raw files ``train``, ``dev`` and ``test``, each ending in ``.csv``, ``.tsv`` or ``.txt``,
  compressed or not, as in ``.csv.gz``;
* one raw file.

Files are read once, into a cache (`cache`).

Raw files in a folder are the splits. Otherwise, in the order of the file, the last seventh of the rows is the
test split, the seventh before it the validation split, and the rest the training split. Criteo's order is the
order of time. Dense features are standardized by mean and deviation of the training split. The embedding
tables have a row for each distinct id of all splits. Rows of ids that occur only in validation or test are
never trained and keep their initial values. With hashed keys, ids are used as they are in the data.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adabench.usecases.common.text_columns import files_called
from adabench.usecases.ctr.cache import Blocks, Columns, cached
from adabench.usecases.ctr.fields import zipf_fields
from adabench.usecases.ctr.generate import generate
from adabench.usecases.ctr.loader import Batch, Split
from adabench.usecases.ctr.read_npy import DENSE, LABELS, SPARSE, npy_blocks, npy_files
from adabench.usecases.ctr.sizes import Sizes
from adabench.usecases.ctr.table import (
    SPARSE_FIELDS,
    Table,
    hashed_ids,
    require_both_classes,
    row_ids,
    standardise,
)
from adabench.usecases.interface import DataError

RAW_NAMES = ("train", "dev", "test")
RAW_ENDINGS = (".csv", ".tsv", ".txt")


class CtrData(NamedTuple):
    """Splits for training, and an identification of the data.

    `rows` is the number of rows of the embedding tables. `first_rows`, int64 (26,), has the first row of each
    field. With hashed keys, both are 0.
    """

    train: Split
    valid: Split
    test: Split
    rows: int
    first_rows: Tensor
    fingerprint: str


def load(
    path: Path | None, generated_rows: int, vocabulary: int | None = None, *, hashed: bool = False
) -> CtrData:
    """Read the data at `path`, or generate `generated_rows` rows if it is None.

    Generated features have the vocabularies of Criteo or, if `vocabulary` is given, this number of values
    each. All of these values have a row in the embedding tables. With `hashed`, the ids of samples are those
    of `table.hashed_ids`.

    Raises
    ------
    DataError
        If the data cannot be read or used.
    """
    if path is None:
        fields = () if vocabulary is None else (zipf_fields(vocabulary),)
        table = generate(generated_rows, *fields)
        what = f"generated data of {generated_rows} rows"
        sizes = Sizes.sevenths(generated_rows, what)
        return _prepare(table, sizes, what, *_numbered(table, vocabulary, hashed))
    try:
        files, blocks = _files(path)
        return _mapped(cached(files, str(path), blocks, hashed=hashed))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): data must be a readable folder or file") from error


def _files(path: Path) -> tuple[list[Path], Blocks | None]:
    """Return the files and the function that reads them, or None for raw files."""
    if not path.exists():
        raise DataError(f"{path} does not exist: data must be a folder or a file of raw Criteo rows")
    if not path.is_dir():
        return [path], None
    if any((path / name).exists() for name in (LABELS, DENSE, SPARSE)):
        return npy_files(path), npy_blocks
    folder = path
    found = {name: files_called(folder, [f"{name}{ending}" for ending in RAW_ENDINGS]) for name in RAW_NAMES}
    if not any(found.values()):
        raise DataError(
            f"{folder} holds no Criteo data: it must hold {LABELS}, {DENSE} and {SPARSE}, "
            "or train.csv, dev.csv and test.csv (.tsv, .txt, compressed: .gz)"
        )
    for name, files in found.items():
        if len(files) != 1:
            has = " and ".join(file.name for file in files) or f"no {name}.csv, {name}.tsv or {name}.txt"
            raise DataError(f"{folder} has {has}: it must have one file each for train, dev and test")
    return [files[0] for files in found.values()], None


def _mapped(columns: Columns) -> CtrData:
    """Return splits that are read from the cache's files when they are used."""
    samples = Batch(*(torch.from_numpy(column) for column in (columns.dense, columns.ids, columns.labels)))
    train, valid, test = (
        Split(Batch(*(column[part] for column in samples))) for part in columns.sizes.slices().values()
    )
    first_rows = torch.from_numpy(columns.first_rows)
    return CtrData(train, valid, test, columns.rows, first_rows, columns.fingerprint)


def _numbered(
    table: Table, vocabulary: int | None, hashed: bool
) -> tuple[NDArray[np.int64], int, NDArray[np.int64]]:
    """Return ids of samples (n, 26), number of rows of the tables, and first row of each field."""
    if hashed:
        return hashed_ids(table.ids), 0, np.zeros(SPARSE_FIELDS, dtype=np.int64)
    if vocabulary is None:
        ids, rows = row_ids(table)
        return ids, rows, ids.min(axis=0)
    # All ids below `vocabulary` have rows, also the ones that do not occur.
    first_rows = vocabulary * np.arange(SPARSE_FIELDS)
    return table.ids + first_rows, SPARSE_FIELDS * vocabulary, first_rows


def _prepare(
    table: Table, sizes: Sizes, what: str, ids: NDArray[np.int64], rows: int, first_rows: NDArray[np.int64]
) -> CtrData:
    parts = list(sizes.slices().values())
    for name, part in sizes.slices().items():
        require_both_classes(table.labels[part], f"the {name} split of {what}")
    samples = Batch(
        torch.from_numpy(standardise(table.dense, table.dense[parts[0]])),
        torch.from_numpy(ids),
        torch.from_numpy(table.labels.astype(np.float32)),
    )
    train, valid, test = (Split(Batch(*(column[part] for column in samples))) for part in parts)
    fingerprint = _fingerprint(table, sizes)
    return CtrData(train, valid, test, rows, torch.from_numpy(first_rows), fingerprint)


def _fingerprint(table: Table, sizes: Sizes) -> str:
    digest = sha256(repr(tuple(sizes)).encode())
    for column in table:
        digest.update(np.ascontiguousarray(column).data)
    return f"sha256:{digest.hexdigest()}"
