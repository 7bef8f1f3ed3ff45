"""The triples of a run: read or generated, and split."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.batches import split_masks
from adabench.usecases.common.cache import (
    ArrayWriter,
    describe_arrays,
    digest_of,
    kept_arrays,
    read_once,
)
from adabench.usecases.interface import DataError
from adabench.usecases.kge.generate import generate
from adabench.usecases.kge.read import Files, Sizes, find, triple_blocks

FORMAT = 3
SPLITS = ("train", "valid", "test")


class Graph(NamedTuple):
    """Triples of head, relation and tail, int32 (n, 3) for each split. They can be mapped from files.

    Entities and relations that occur only in validation or test triples are included. They keep their initial
    rows.
    """

    train: NDArray[np.int32]
    valid: NDArray[np.int32]
    test: NDArray[np.int32]
    sizes: Sizes
    fingerprint: str


def load(path: Path | None, generated: int) -> Graph:
    """Read the triples at `path`, or generate about `generated` if it is None.

    Raises
    ------
    DataError
        If the data cannot be read or used.
    """
    if path is None:
        triples, sizes = generate(generated)
        train, valid, test = (triples[rows] for rows in split_masks(0, len(triples)))
        fingerprint = digest_of(repr(sizes), (train, valid, test))
        graph = Graph(train, valid, test, sizes, fingerprint)
        return _whole(graph, f"generated data of {generated} triples")
    try:
        files = find(path)
        graph = read_once("triples", [*files.triples, *files.counts], partial(_build, files), _open)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): data must be a readable folder or file") from error
    return _whole(graph, str(path))


def _whole(graph: Graph, what: str) -> Graph:
    for name in SPLITS:
        if len(getattr(graph, name)) == 0:
            total = sum(len(getattr(graph, split)) for split in SPLITS)
            raise DataError(
                f"{what}: the {name} split is empty, because there are only {total} triples: more are needed"
            )
    return graph


def _build(files: Files, folder: Path) -> None:
    sizes, seen = list[Sizes](), 0
    with ArrayWriter(folder) as output:
        for index, block in triple_blocks(files, sizes):
            if len(files.triples) == 1:
                masks = zip(SPLITS, split_masks(seen, len(block)), strict=True)
                output.append(**{split: block[rows] for split, rows in masks})
            else:
                output.append(**{SPLITS[index]: block})
            seen += len(block)
    describe_arrays(folder, FORMAT, output.shapes, what=repr(sizes[0]), sizes=sizes[0])


def _open(folder: Path) -> Graph | None:
    kept = kept_arrays(folder, FORMAT)
    return kept and Graph(**kept.arrays, sizes=Sizes(*kept.facts["sizes"]), fingerprint=kept.fingerprint)
