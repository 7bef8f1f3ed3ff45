"""Reads OGB's folders for node property prediction, in the csv.gz layout."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.gcn.columns import column_blocks, integers, labels_of, read_columns, require
from adabench.usecases.gcn.graph import Graph, Split
from adabench.usecases.gcn.mapped import Parts, mapped_graph
from adabench.usecases.interface import DataError

PARTS = ("train", "valid", "test")


def read_ogb(name: str, folder: Path) -> Graph:
    """Read ``raw/edge.csv.gz``, ``raw/node-label.csv.gz`` and ``split/*/{train,valid,test}.csv.gz``.

    They can be in `folder` or in a subfolder with the name of OGB's archive (``arxiv``) or library
    (``ogbn_arxiv``). Nodes with an empty label are removed from the split.

    Raises
    ------
    DataError
        If a file is missing or damaged, or refers to a node that does not exist.
    """
    root = _root(name, folder)
    schemes = sorted(path for path in (root / "split").glob("*") if path.is_dir())
    if len(schemes) != 1:
        raise DataError(f"{root / 'split'}: must hold one folder with a split, not {len(schemes)}")
    needed = [
        root / "raw" / "edge.csv.gz",
        root / "raw" / "node-label.csv.gz",
        *(schemes[0] / f"{part}.csv.gz" for part in PARTS),
    ]
    promised = (root / "raw" / f"num-{what}-list.csv.gz" for what in ("node", "edge"))
    files = [*map(require, needed), *(file for file in promised if file.is_file())]
    return mapped_graph(files, partial(_read, root, schemes[0]))


def _read(root: Path, scheme: Path) -> Parts:
    label_file, edge_file = root / "raw" / "node-label.csv.gz", root / "raw" / "edge.csv.gz"
    labels = labels_of(read_columns(label_file, width=1)[1][0], label_file)
    _check_count(root / "raw" / "num-node-list.csv.gz", len(labels), label_file)
    parts = []
    for part in PARTS:
        file = scheme / f"{part}.csv.gz"
        (nodes,) = integers(file, *read_columns(file, width=1))
        outside = nodes[(nodes < 0) | (nodes >= len(labels))]
        if len(outside):
            raise DataError(f"{file}: node {outside[0]} is outside [0, {len(labels)})")
        parts.append(np.unique(nodes[labels[nodes] >= 0]))
    if len(np.unique(np.concatenate(parts))) != sum(map(len, parts)):
        raise DataError(f"{scheme}: a node is in two of train, valid and test")
    edges = _edges(edge_file, root / "raw" / "num-edge-list.csv.gz")
    return Parts(labels, edges, str(edge_file), Split(*parts))


def _edges(file: Path, promised: Path) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    count = 0
    for line, columns in column_blocks(file, width=2):
        sources, targets = integers(file, line, columns)
        count += len(sources)
        yield sources, targets
    _check_count(promised, count, file)


def _root(name: str, folder: Path) -> Path:
    candidates = [folder, folder / name.removeprefix("ogbn-"), folder / name.replace("-", "_")]
    for candidate in candidates:
        if (candidate / "raw").is_dir():
            return candidate
    raise DataError(
        f"{folder}: holds no raw/ with the files of {name}, nor does {candidates[1]} or {candidates[2]}"
    )


def _check_count(file: Path, found: int, where: Path) -> None:
    if not file.is_file():
        return
    (counts,) = integers(file, *read_columns(file, width=1))
    if int(counts.sum()) != found:
        raise DataError(f"{where}: has {found} rows where {file.name} promises {counts.sum()}")
