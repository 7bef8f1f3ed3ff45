"""Reads the MUSAE social graphs: an edge list and a table of targets, both csv with a header."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from adabench.usecases.gcn.columns import integers, labels_of, read_columns
from adabench.usecases.gcn.graph import UNLABELLED, Graph, build_graph
from adabench.usecases.interface import DataError


class Files(NamedTuple):
    edges: str
    ends: tuple[str, str]
    targets: str
    node: str
    label: str


MUSAE = {
    "facebook": Files("facebook_edges.csv", ("id_1", "id_2"), "facebook_target.csv", "id", "page_type"),
    "github": Files("git_edges.csv", ("id_1", "id_2"), "git_target.csv", "id", "ml_target"),
    "twitch_de": Files("DE_edges.csv", ("from", "to"), "DE_target.csv", "new_id", "mature"),
}


def read_musae(name: str, folder: Path) -> Graph:
    """Read one of `MUSAE`.

    Each row of the file of targets describes one node of the graph. Nodes with an empty label are never used
    for training or tests.

    Raises
    ------
    DataError
        If a file is missing or damaged, if node ids are not exactly 0, 1, 2, …, or if an edge refers to
        another node.
    """
    files = MUSAE[name]
    table = folder / files.targets
    line, (ids, classes) = read_columns(table, [files.node, files.label])
    (nodes,) = integers(table, line, [ids])
    wrong = np.flatnonzero(np.sort(nodes) != np.arange(len(nodes)))
    if len(wrong):
        raise DataError(
            f"{table}: column {files.node} must hold every node id from 0 to {len(nodes) - 1} once, "
            f"but {wrong[0]} is missing or another id is given twice"
        )
    labels = np.full(len(nodes), UNLABELLED, dtype=np.int64)
    labels[nodes] = labels_of(classes, table)
    file = folder / files.edges
    first, second = integers(file, *read_columns(file, files.ends))
    return build_graph(first, second, labels, where=str(file))
