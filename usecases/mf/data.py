"""The ratings of a run: read or generated, and split.

A hash of a rating's index in the file determines its split. Of the ratings outside of the chosen fold, one in
twenty is used for validation. Therefore runs with different seeds have equal splits, the five folds together
test every rating once, and only the numbers of the rows are kept in memory for the splits.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.batches import scattered
from adabench.usecases.common.cache import (
    ArrayWriter,
    describe_arrays,
    digest_of,
    kept_arrays,
    read_once,
)
from adabench.usecases.interface import DataError
from adabench.usecases.mf.generate import generate
from adabench.usecases.mf.read import Block, rating_blocks, rating_file

FOLDS = 5
VALID_ONE_IN = 20
FORMAT = 2


class Ratings(NamedTuple):
    """All ratings, in the order of the file.

    Attributes
    ----------
    block : Block
        Users, items and ratings, int32 or int64, and float32 (n,). They can be mapped from files.
    users, items : int
        Numbers of users and of items; 0 with hashed ids.
    fingerprint : str
        Digest of the data.
    """

    block: Block
    users: int
    items: int
    fingerprint: str


class Splits(NamedTuple):
    """Ascending indices of ratings, int64 and disjoint."""

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]


def load(path: Path | None, generated: int, *, hashed: bool = False) -> Ratings:
    """Read the ratings at `path`, or generate about `generated` if it is None.

    With `hashed`, users and items have their ids as in the data, instead of numbers.

    Raises
    ------
    DataError
        If the data cannot be read or used.
    """
    if path is None:
        block = generate(generated, hashed=hashed)
        if hashed:
            return Ratings(block, 0, 0, digest_of("ratings", block))
        sizes = int(block.users.max()) + 1, int(block.items.max()) + 1
        return Ratings(block, *sizes, digest_of("ratings", block))
    try:
        file = rating_file(path)
        build = partial(_build, file, hashed=hashed)
        return read_once("ratings-hashed" if hashed else "ratings", [file], build, _open)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): data must be a readable folder or file") from error


def split(count: int, fold: int) -> Splits:
    """Return the splits of `count` ratings, with `fold`, below `FOLDS`, as test split."""
    buckets = scattered(0, count) % np.uint64(FOLDS * VALID_ONE_IN)
    tested = buckets % FOLDS == fold
    validated = ~tested & (buckets // FOLDS == 0)
    return Splits(*(np.flatnonzero(rows) for rows in (~tested & ~validated, validated, tested)))


def _build(file: Path, folder: Path, hashed: bool) -> None:
    users = items = 0
    with ArrayWriter(folder) as output:
        for block in rating_blocks(file, hashed=hashed):
            output.append(**block._asdict())
            if not hashed:
                users = max(users, int(block.users.max()) + 1)
                items = max(items, int(block.items.max()) + 1)
    describe_arrays(folder, FORMAT, output.shapes, what="ratings", users=users, items=items)


def _open(folder: Path) -> Ratings | None:
    kept = kept_arrays(folder, FORMAT)
    return kept and Ratings(Block(**kept.arrays), **kept.facts, fingerprint=kept.fingerprint)
