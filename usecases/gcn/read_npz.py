"""Graphs in one npz file: compressed rows, or an edge list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.damaged import UNREADABLE_ARRAYS, why
from adabench.usecases.gcn.graph import Graph, build_graph
from adabench.usecases.protocol import DataError

__all__ = ["read_npz"]

LABELS = ("lab", "labels", "y")


def read_npz(file: Path) -> Graph:
    """Read ``indptr`` (nodes + 1,) and ``indices`` (arcs,), or ``edges`` (edges, 2); and labels (nodes,).

    Labels are called ``lab``, ``labels`` or ``y``; a negative one means that the node has none. Other arrays
    are left unread.

    Raises
    ------
    DataError
        If arrays are missing, of a wrong shape or type, or do not describe a graph.
    """
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {
                name: archive[name]
                for name in archive.files
                if name in ("indptr", "indices", "edges", *LABELS)
            }
    except UNREADABLE_ARRAYS as error:
        raise DataError(f"{file}: not a readable npz file ({why(error)})") from error
    name = next((name for name in LABELS if name in arrays), None)
    if name is None:
        raise DataError(
            f"{file}: the labels are missing, an array called {', '.join(LABELS[:-1])} or {LABELS[-1]}"
        )
    labels = _integers(arrays, name, file, 1)
    if "edges" in arrays:
        edges = _integers(arrays, "edges", file, 2)
        if edges.shape[1] != 2:
            raise DataError(f"{file}: edges must have 2 columns, not {edges.shape[1]}")
        return build_graph(edges[:, 0], edges[:, 1], labels, where=str(file))
    indptr = _integers(arrays, "indptr", file, 1)
    indices = _integers(arrays, "indices", file, 1)
    if len(indptr) != len(labels) + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        raise DataError(
            f"{file}: indptr must have {len(labels) + 1} values, from 0 to the {len(indices)} arcs, "
            f"but it has {len(indptr)}, from {indptr[0]} to {indptr[-1]}"
        )
    degrees = np.diff(indptr)
    if degrees.min() < 0:
        raise DataError(f"{file}: indptr must not fall, but it does at node {degrees.argmin()}")
    return build_graph(np.repeat(np.arange(len(labels)), degrees), indices, labels, where=str(file))


def _integers(arrays: dict[str, NDArray[Any]], name: str, file: Path, dimensions: int) -> NDArray[np.int64]:
    if name not in arrays:
        raise DataError(f"{file}: array {name} is missing; a graph is indptr and indices, or edges")
    array = arrays[name]
    if array.dtype.kind not in "iu" or array.ndim != dimensions or not array.size:
        raise DataError(
            f"{file}: {name} must be an array of integers with {dimensions} dimension(s), and not empty; "
            f"it is {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)
