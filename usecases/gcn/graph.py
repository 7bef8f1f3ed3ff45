"""A graph with labelled nodes, in the common format of all readers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.cache import digest_of
from adabench.usecases.interface import DataError

UNLABELLED = -1
TRAIN_SHARE, VALID_SHARE = 0.54, 0.18  # proportions of ogbn-arxiv; the rest is the test split


@dataclass(frozen=True)
class Split:
    """Disjoint int64 node ids for training, validation and test."""

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """An undirected graph without loops or parallel edges. It can be mapped from files.

    Attributes
    ----------
    indptr, indices : int64 (nodes + 1,), int32 (arcs,)
        Compressed rows: the neighbors of node ``v`` are ``indices[indptr[v]:indptr[v + 1]]``, ascending. Each
        edge is two arcs, so the compressed columns are equal to the compressed rows.
    labels : int64 (nodes,)
        Class of each node, from 0 to the number of classes minus one, or `UNLABELLED`.
    split : Split or None
        Split that comes with the data, if there is one.
    features : float32 (nodes, width) or None
        Features of each node, if the use case wants them.
    known_fingerprint : str or None
        `fingerprint`, if it was stored with the arrays.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    labels: NDArray[np.int64]
    split: Split | None = None
    features: NDArray[np.float32] | None = None
    known_fingerprint: str | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1

    @cached_property
    def edge_index(self) -> NDArray[np.int64]:
        """Return arcs in PyG's format: int64 (2, arcs), with sources in row 0 and targets in row 1."""
        targets = np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))
        return np.stack([self.indices.astype(np.int64), targets])

    @cached_property
    def fingerprint(self) -> str:
        """Return ``sha256:…`` of structure, labels, split and features."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        arrays: list[NDArray[Any]] = [self.indptr, self.indices, self.labels]
        if self.split is not None:
            arrays += [self.split.train, self.split.valid, self.split.test]
        if self.features is not None:
            arrays.append(self.features)
        return digest_of("", arrays)


def build_graph(
    sources: NDArray[np.integer],
    targets: NDArray[np.integer],
    labels: NDArray[np.integer],
    *,
    where: str,
    split: Split | None = None,
) -> Graph:
    """Return a `Graph` of edges in any direction and order. Repeated edges are allowed.

    Loops are dropped: `GCNConv` adds exactly one to every node, and a sampled loop would only replace a
    neighbor. A node without edges is kept. It is classified by its own embedding.

    Parameters
    ----------
    sources, targets : int array (edges,)
        Node ids in ``[0, len(labels))``.
    labels : int array (nodes,)
        Classes, any numbers; negative if unknown.
    where : str
        Name of the edges' file, for error messages.
    split : Split, optional
        Nodes for training, validation and test; by default they are drawn at random.

    Raises
    ------
    DataError
        If an edge refers to a node that does not exist, or if no node has a label.
    """
    import scipy.sparse  # importing SciPy takes longer than commands that build no graph

    labels = numbered_labels(labels)
    num_nodes = len(labels)
    require_ends(sources, targets, num_nodes, where)
    require_labels(labels, where)
    proper = sources != targets
    row = np.concatenate([sources[proper], targets[proper]])
    column = np.concatenate([targets[proper], sources[proper]])
    matrix = scipy.sparse.csr_array(
        (np.ones(len(row), dtype=np.bool_), (row, column)), shape=(num_nodes, num_nodes)
    )
    matrix.sum_duplicates()
    return Graph(
        indptr=matrix.indptr.astype(np.int64),
        indices=matrix.indices.astype(np.int32),
        labels=labels,
        split=split,
    )


def numbered_labels(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return classes from 0 without gaps, in the order of the given ones; `UNLABELLED` for negative ones."""
    known = labels >= 0
    numbered = np.full(len(labels), UNLABELLED, dtype=np.int64)
    numbered[known] = np.unique(labels[known], return_inverse=True)[1]
    return numbered


def require_ends(
    sources: NDArray[np.integer], targets: NDArray[np.integer], num_nodes: int, where: str, first: int = 0
) -> None:
    """Raise `DataError` if an edge refers to a missing node; `first` is the number of the first edge."""
    for ends in (sources, targets):
        outside = np.flatnonzero((ends < 0) | (ends >= num_nodes))
        if len(outside):
            edge = int(outside[0])
            raise DataError(
                f"{where}: edge {first + edge} joins nodes {sources[edge]} and {targets[edge]}, "
                f"but node ids must be in [0, {num_nodes})"
            )


def require_labels(labels: NDArray[np.integer], where: str) -> None:
    """Raise `DataError` if no node has a label, or if there are more nodes than ids."""
    num_nodes = len(labels)
    if num_nodes == 0 or int(labels.max()) < 0:
        raise DataError(f"{where}: none of the {num_nodes} nodes has a label, so there is nothing to learn")
    if num_nodes > np.iinfo(np.int32).max:
        raise DataError(
            f"{where}: {num_nodes} nodes are too many, at most {np.iinfo(np.int32).max} are supported"
        )


def random_split(labels: NDArray[np.int64], seed: int) -> Split:
    """Split the labelled nodes at random, 54 / 18 / 28 %, each part in ascending order."""
    nodes = np.random.default_rng(seed).permutation(np.flatnonzero(labels != UNLABELLED))
    first = round(TRAIN_SHARE * len(nodes))
    second = first + round(VALID_SHARE * len(nodes))
    return Split(*(np.sort(part) for part in (nodes[:first], nodes[first:second], nodes[second:])))
