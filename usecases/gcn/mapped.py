"""Graphs that are read once, in blocks, into arrays on disk, which all nodes of all runs map into memory.

Reading a graph needs memory for its nodes and for a part of its arcs. A folder of the cache contains the
arrays of `Graph`: ``indptr.bin``, ``indices.bin``, ``labels.bin``, the arrays of its split if there is one,
``features.bin`` if they are wanted, and their description.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.cache import ArrayWriter, describe_arrays, kept_arrays, read_once
from adabench.usecases.gcn.graph import Graph, Split, numbered_labels, require_ends, require_labels

FORMAT = 2
EDGES_AT_ONCE = 1 << 19
"""Number of edges of a block."""
_ARCS = 1 << 22  # number of arcs that are sorted together
_FILES = 256  # maximum number of files for arcs; for larger graphs, more arcs are sorted together

_SPLITS = ("train", "valid", "test")
_TARGET = (1 << 32) - 1  # bits of a key with the arc's target; the bits above contain its source


class Parts(NamedTuple):
    """The contents of a graph's file.

    Attributes
    ----------
    labels : array
        Classes, int64 (nodes,): any numbers, negative if unknown.
    edges : iterable
        Blocks of edges, each with two arrays of integers: the sources and the targets.
    where : str
        Name of the edges for messages: their file.
    split : Split or None
        Split that comes with the data, if there is one.
    features : array or None
        Features, float32 (nodes, width), if they are wanted.
    """

    labels: NDArray[np.int64]
    edges: Iterable[tuple[NDArray[Any], NDArray[Any]]]
    where: str
    split: Split | None = None
    features: NDArray[np.float32] | None = None


def mapped_graph(files: Sequence[Path], read: Callable[[], Parts], features: bool = False) -> Graph:
    """Return the graph of some files from the cache, or read them. The graph is as `build_graph` makes it.

    Parameters
    ----------
    files : sequence of Path
        Files to read; they must exist.
    read : callable
        Function that reads the files.
    features : bool
        Whether it reads features. Graphs with features have a separate cache.

    Raises
    ------
    DataError
        If an edge refers to a missing node, if no node has a label, if the cache cannot be written, or if
        `read` raises it.
    """
    settings = {"features": True} if features else None
    return read_once("graph", files, partial(_build, read), _open, settings)


def _build(read: Callable[[], Parts], folder: Path) -> None:
    parts = read()
    labels = numbered_labels(parts.labels)
    require_labels(labels, parts.where)
    with ArrayWriter(folder) as output:  # in the order of `Graph.fingerprint`
        _write_arcs(folder, len(labels), parts, output)
        output.append(labels=labels)
        if parts.split is not None:
            output.append(**vars(parts.split))
        if parts.features is not None:
            output.append(features=parts.features)
    describe_arrays(folder, FORMAT, output.shapes)


def _open(folder: Path) -> Graph | None:
    kept = kept_arrays(folder, FORMAT)
    if kept is None:
        return None
    split = Split(*(kept.arrays.pop(name) for name in _SPLITS)) if "train" in kept.arrays else None
    return Graph(**kept.arrays, split=split, known_fingerprint=kept.fingerprint)


def _write_arcs(folder: Path, nodes: int, parts: Parts, output: ArrayWriter) -> None:
    """Write compressed rows.

    Edges are counted for each node. Then they are divided into files, each with all arcs of some nodes. A
    file fits in memory, where its arcs are sorted.
    """
    edges = folder / "edges.bin"
    ends = np.cumsum(_write_edges(edges, nodes, parts))
    most = max(_ARCS, -(-int(ends[-1]) // _FILES))
    inner = np.searchsorted(ends, np.arange(most, ends[-1], most)) + 1
    cuts: list[int] = np.unique(np.concatenate([[0], inner, [nodes]])).tolist()
    del ends
    files = [folder / f"arcs{number}.bin" for number in range(len(cuts) - 1)]
    _divide(edges, files, cuts)
    edges.unlink()
    arcs = 0
    output.append(indptr=np.zeros(1, dtype=np.int64))
    for file, (first, end) in zip(files, pairwise(cuts), strict=True):
        keys = _distinct(np.fromfile(file, dtype=np.int64))
        file.unlink()
        output.append(indices=(keys & _TARGET).astype(np.int32))
        keys >>= 32
        keys -= first
        output.append(indptr=arcs + np.cumsum(np.bincount(keys, minlength=end - first)))
        arcs += len(keys)


def _write_edges(file: Path, nodes: int, parts: Parts) -> NDArray[np.int64]:
    """Write all edges except loops, int32 (edges, 2). Returns the degree of each node."""
    degrees, seen = np.zeros(nodes, dtype=np.int64), 0
    with file.open("wb") as output:
        for sources, targets in parts.edges:
            require_ends(sources, targets, nodes, parts.where, seen)
            seen += len(sources)
            proper = sources != targets
            pairs = np.stack([sources[proper], targets[proper]], axis=1).astype(np.int32)
            pairs.tofile(output)
            found, times = np.unique(pairs, return_counts=True)
            degrees[found] += times
    return degrees


def _divide(edges: Path, files: Sequence[Path], cuts: Sequence[int]) -> None:
    """Write both arcs of each edge, as keys, into the file of their source nodes."""
    with ExitStack() as stack:
        outputs = [stack.enter_context(file.open("wb", buffering=0)) for file in files]
        for pairs in _blocks(edges):
            one, other = pairs.astype(np.int64).T
            keys = np.concatenate([one << 32 | other, other << 32 | one])
            keys.sort()
            places = np.searchsorted(keys, np.array(cuts[1:-1], dtype=np.int64) << 32)
            for part, output in zip(np.split(keys, places), outputs, strict=True):
                part.tofile(output)


def _blocks(edges: Path) -> Iterator[NDArray[np.int32]]:
    with edges.open("rb") as file:
        while len(block := np.fromfile(file, np.int32, 2 * EDGES_AT_ONCE)):
            yield block.reshape(-1, 2)


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    keys.sort()
    first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys[first]
