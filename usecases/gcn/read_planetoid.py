"""Reads Cora, CiteSeer and PubMed, as npz or as the original pickles; structure and labels only."""

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.npy_errors import why
from adabench.usecases.gcn.columns import integers, read_columns, require
from adabench.usecases.gcn.graph import UNLABELLED, Graph, build_graph
from adabench.usecases.gcn.read_npz import read_npz
from adabench.usecases.interface import DataError

PLANETOID = ("cora", "citeseer", "pubmed")
PLANETOID_PARTS = ("graph", "ally", "ty", "test.index")
"""Parts of ``ind.NAME.PART`` that contain structure and labels."""


def read_planetoid(name: str, folder: Path) -> Graph:
    """Read ``NAME.npz`` if it exists, otherwise ``ind.NAME.graph``, ``.ally``, ``.ty`` and ``.test.index``.

    Nodes without a label (CiteSeer has 15) are never used for training or tests.

    Raises
    ------
    DataError
        If a file is missing or damaged, or contains anything except arrays and containers of numbers.
    """
    npz = folder / f"{name}.npz"
    if npz.is_file():
        return read_npz(npz)
    graph_file, known_file, test_file, index_file = (
        folder / f"ind.{name}.{part}" for part in PLANETOID_PARTS
    )
    adjacency = _unpickle(graph_file)
    if not isinstance(adjacency, dict) or not adjacency:
        raise DataError(f"{graph_file}: must hold a dictionary from each node to its neighbours")
    known, tested = _one_hot(known_file), _one_hot(test_file)
    (index,) = integers(index_file, *read_columns(index_file, width=1))
    num_nodes = max(len(known) + len(tested), len(adjacency))
    if len(index) != len(tested) or index.min() < len(known) or index.max() >= num_nodes:
        raise DataError(
            f"{index_file}: must give each of {len(tested)} test nodes an id in [{len(known)}, {num_nodes})"
        )
    labels = np.full(num_nodes, UNLABELLED, dtype=np.int64)
    labels[: len(known)] = known
    labels[index] = tested
    try:
        sources = np.repeat(list(adjacency), [len(ends) for ends in adjacency.values()]).astype(np.int64)
        targets = np.fromiter((end for ends in adjacency.values() for end in ends), dtype=np.int64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{graph_file}: must hold a dictionary from each node to its neighbours ({error})"
        ) from error
    return build_graph(sources, targets, labels, where=str(graph_file))


class _NumbersOnly(pickle.Unpickler):
    """An unpickler that can only create arrays and default dictionaries, because pickles can run any code."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("collections", "defaultdict"),
            ("__builtin__", "list"),
            ("builtins", "list"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is no array or container")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


# Exceptions of the unpickler for bytes that are not a pickle.
_DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    MemoryError,
    ImportError,
)


def _unpickle(file: Path) -> Any:
    stream: BinaryIO
    with require(file).open("rb") as stream:
        try:
            return _NumbersOnly(stream, encoding="latin1").load()
        except _DAMAGED as error:
            raise DataError(f"{file}: not a Planetoid pickle ({why(error)})") from error


def _one_hot(file: Path) -> NDArray[np.int64]:
    rows = _unpickle(file)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind not in "iuf":
        raise DataError(f"{file}: must hold one row of zeros and a one for each node")
    # The original format marks a node without a label by a row of zeros.
    return np.where(rows.sum(axis=1) > 0, rows.argmax(axis=1), UNLABELLED)
