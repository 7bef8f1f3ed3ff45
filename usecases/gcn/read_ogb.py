"""OGB's node property prediction folders, in the csv.gz layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adabench.usecases.gcn.columns import integers, labels_of, read_columns
from adabench.usecases.gcn.graph import Graph, Split, build_graph
from adabench.usecases.protocol import DataError

__all__ = ["read_ogb"]

PARTS = ("train", "valid", "test")


def read_ogb(name: str, folder: Path) -> Graph:
    """Read ``raw/edge.csv.gz``, ``raw/node-label.csv.gz`` and ``split/*/{train,valid,test}.csv.gz``.

    They may lie in `folder` itself or in a subfolder called as OGB's archive (``arxiv``) or library
    (``ogbn_arxiv``) does. Nodes whose label is empty are taken out of the split.

    Raises
    ------
    DataError
        If a file is missing or damaged, or names a node that does not exist.
    """
    root = _root(name, folder)
    label_file, edge_file = root / "raw" / "node-label.csv.gz", root / "raw" / "edge.csv.gz"
    labels = labels_of(read_columns(label_file, width=1)[0], label_file)
    _check_count(root / "raw" / "num-node-list.csv.gz", len(labels), label_file)
    edges = read_columns(edge_file, width=2)
    _check_count(root / "raw" / "num-edge-list.csv.gz", len(edges), edge_file)
    sources, targets = (integers(edges[column], edge_file) for column in (0, 1))
    schemes = sorted(path for path in (root / "split").glob("*") if path.is_dir())
    if len(schemes) != 1:
        raise DataError(f"{root / 'split'}: must hold one folder with a split, not {len(schemes)}")
    parts = []
    for part in PARTS:
        file = schemes[0] / f"{part}.csv.gz"
        nodes = integers(read_columns(file, width=1)[0], file)
        outside = nodes[(nodes < 0) | (nodes >= len(labels))]
        if len(outside):
            raise DataError(f"{file}: node {outside[0]} is outside [0, {len(labels)})")
        parts.append(np.unique(nodes[labels[nodes] >= 0]))
    if len(np.unique(np.concatenate(parts))) != sum(map(len, parts)):
        raise DataError(f"{schemes[0]}: a node is in two of train, valid and test")
    return build_graph(sources, targets, labels, where=str(edge_file), split=Split(*parts))


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
    counts = integers(read_columns(file, width=1)[0], file)
    if int(counts.sum()) != found:
        raise DataError(f"{where}: has {found} rows where {file.name} promises {counts.sum()}")
