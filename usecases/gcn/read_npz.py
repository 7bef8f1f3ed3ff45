"""Reads graphs in one npz file: compressed rows, or an edge list. Arcs are read in blocks."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.npy_errors import UNREADABLE_ARRAYS, why
from adabench.usecases.gcn.columns import require
from adabench.usecases.gcn.graph import Graph
from adabench.usecases.gcn.mapped import EDGES_AT_ONCE, Parts, mapped_graph
from adabench.usecases.interface import DataError

LABELS = ("lab", "labels", "y", "node_labels")
FEATURES = ("features", "node_features", "x")
SKIPPED_AT_ONCE = 1 << 20


def read_npz(file: Path, features: bool = False) -> Graph:
    """Read ``indptr`` (nodes + 1,) and ``indices`` (arcs,), or edges; and labels (nodes,).

    Edges are named ``edges`` (edges, 2) or ``edge_index`` (2, edges). Labels are named ``lab``, ``labels``,
    ``y`` or ``node_labels``. A negative label means that the node has none. If `features` is true, node
    features (nodes, width) are read from ``features``, ``node_features`` or ``x``. Other arrays are ignored.

    Raises
    ------
    DataError
        If arrays are missing, have a wrong shape or type, or do not describe a graph.
    """
    read = partial(_read_with_features if features else _read, file)
    return mapped_graph([require(file)], read, features)


def _read_with_features(file: Path) -> Parts:
    parts = _read(file)
    return parts._replace(features=_features(file, len(parts.labels)))


def _features(file: Path, nodes: int) -> NDArray[np.float32]:
    """Return the features of all nodes, which memory holds while they are read."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            name = next((name for name in FEATURES if name in arrays), None)
            found = None if name is None else arrays[name]
    except UNREADABLE_ARRAYS as error:
        raise _unreadable(file, error) from error
    if found is None:
        raise DataError(
            f"{file}: there are no node features, an array called {', '.join(FEATURES[:-1])} or "
            f"{FEATURES[-1]}; leave out features=on"
        )
    if found.dtype.kind not in "biuf" or found.ndim != 2 or len(found) != nodes or found.shape[1] == 0:
        raise DataError(
            f"{file}: {name} must be an array of numbers of shape ({nodes}, width); "
            f"it is {found.dtype} of shape {found.shape}"
        )
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(found, dtype=np.float32)
    wrong = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(wrong):
        raise DataError(f"{file}: {name} of node {wrong[0]} must be finite numbers of 32 bits")
    return features


def _read(file: Path) -> Parts:
    try:
        with ZipFile(file) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except UNREADABLE_ARRAYS as error:
        raise _unreadable(file, error) from error
    name = next((name for name in LABELS if name in names), None)
    if name is None:
        raise DataError(
            f"{file}: the labels are missing, an array called {', '.join(LABELS[:-1])} or {LABELS[-1]}"
        )
    labels = _whole(_member(file, name, names, 1))
    if "edges" in names:
        edges = _member(file, "edges", names, 2)
        if edges.shape[1] != 2:
            raise DataError(f"{file}: edges must have 2 columns, not {edges.shape[1]}")
        return Parts(labels, _pairs(edges), str(file))
    if "edge_index" in names:
        edges = _member(file, "edge_index", names, 2)
        if edges.shape[0] != 2:
            raise DataError(f"{file}: edge_index must have 2 rows, not {edges.shape[0]}")
        # Two rows in one memory order are two columns in the other.
        turned = edges._replace(shape=edges.shape[::-1], fortran=not edges.fortran)
        return Parts(labels, _pairs(turned), str(file))
    pointers, indices = _member(file, "indptr", names, 1), _member(file, "indices", names, 1)
    indptr = _whole(pointers)
    arcs = math.prod(indices.shape)
    if len(indptr) != len(labels) + 1 or indptr[0] != 0 or indptr[-1] != arcs:
        raise DataError(
            f"{file}: indptr must have {len(labels) + 1} values, from 0 to the {arcs} arcs, "
            f"but it has {len(indptr)}, from {indptr[0]} to {indptr[-1]}"
        )
    degrees = np.diff(indptr)
    if degrees.min() < 0:
        raise DataError(f"{file}: indptr must not decrease, but it does at node {degrees.argmin()}")
    return Parts(labels, _rows(indptr, indices), str(file))


class _Member(NamedTuple):
    """An array of integers in an archive, which is not empty."""

    file: Path
    name: str
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]
    header: int  # bytes before the numbers

    def numbers(self, start: int, stop: int, at_once: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers from `start` to `stop`, in the order of the file, in blocks."""
        size = self.dtype.itemsize
        try:
            with ZipFile(self.file) as archive, archive.open(self.name) as stream:
                # The beginning is read instead of skipped, because the archive checks the checksum of the
                # complete array.
                ahead = self.header + start * size
                while ahead:
                    if not (passed := len(stream.read(min(ahead, SKIPPED_AT_ONCE)))):
                        raise EOFError(f"{self.name} ends before its number {start}")
                    ahead -= passed
                for first in range(start, stop, at_once):
                    count = min(at_once, stop - first)
                    read = stream.read(count * size)
                    if len(read) < count * size:
                        raise EOFError(f"{self.name} ends after {first} of {stop} numbers")
                    yield np.frombuffer(read, self.dtype).astype(np.int64)
        except UNREADABLE_ARRAYS as error:
            raise _unreadable(self.file, error) from error


def _member(file: Path, name: str, names: set[str], dimensions: int) -> _Member:
    if name not in names:
        raise DataError(
            f"{file}: array {name} is missing; a graph is indptr and indices, edges or edge_index"
        )
    try:
        with ZipFile(file) as archive, archive.open(f"{name}.npy") as stream:
            version = np.lib.format.read_magic(stream)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(stream)
            header = stream.tell()
    except UNREADABLE_ARRAYS as error:
        raise _unreadable(file, error) from error
    if dtype.kind not in "iu" or len(shape) != dimensions or min(shape) < 1:
        raise DataError(
            f"{file}: {name} must be an array of integers with {dimensions} dimension(s), and not empty; "
            f"it is {dtype} of shape {shape}"
        )
    return _Member(file, f"{name}.npy", shape, fortran, dtype, header)


def _whole(member: _Member) -> NDArray[np.int64]:
    return np.concatenate(list(member.numbers(0, member.shape[0], EDGES_AT_ONCE)))


def _pairs(edges: _Member) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    count = edges.shape[0]
    if edges.fortran:  # one column follows the other
        ends = (edges.numbers(column * count, (column + 1) * count, EDGES_AT_ONCE) for column in (0, 1))
        yield from zip(*ends, strict=True)
        return
    for block in edges.numbers(0, 2 * count, 2 * EDGES_AT_ONCE):
        yield block[0::2], block[1::2]


def _rows(
    indptr: NDArray[np.int64], indices: _Member
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    first = 0
    for block in indices.numbers(0, int(indptr[-1]), EDGES_AT_ONCE):
        end = first + len(block)
        # the first node after the block's first and last arc's node
        low, high = np.searchsorted(indptr, [first, end - 1], side="right")
        bounds = np.clip(indptr[low - 1 : high + 1], first, end)
        lengths = bounds[1:] - bounds[:-1]
        yield np.repeat(np.arange(low - 1, high), lengths), block
        first = end


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file}: not a readable npz file ({why(error)})")
