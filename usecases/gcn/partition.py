"""Which worker trains on which nodes."""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from adabench.usecases.gcn.graph import Graph
from adabench.usecases.protocol import DataError

__all__ = ["METHODS", "Method", "Partition", "partition"]

Method = Literal["metis", "random", "contiguous"]
METHODS: tuple[Method, ...] = ("metis", "random", "contiguous")

# A training node costs its worker a sample; any node may be in its neighbourhoods and so costs a little.
TRAINING_WEIGHT, OTHER_WEIGHT = 3, 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Partition:
    """A division of the graph among workers.

    Attributes
    ----------
    part : int64 (nodes,)
        The worker whose neighbourhood each node is in.
    training : int64 (workers, training nodes // workers)
        Each worker's training nodes, ascending. Where the workers do not divide the number of training nodes,
        the remainder, fewer nodes than there are workers, is left out.
    """

    part: NDArray[np.int64]
    training: NDArray[np.int64]


def partition(
    graph: Graph,
    training: NDArray[np.int64],
    workers: int,
    method: Method,
    seed: int,
    cache: Path | None = None,
) -> Partition:
    """Divide nodes and training nodes among workers.

    Parameters
    ----------
    graph : Graph
    training : int64 (training nodes,)
    workers : int
        Parts, at least 1.
    method : "metis", "random" or "contiguous"
        METIS cuts few edges while it balances training nodes (Karypis and Kumar, SIAM J. Sci. Comput. 20,
        1998); the others ignore edges and divide at random or by node id.
    seed : int
        Of METIS and of random division.
    cache : Path, optional
        Folder for what METIS finds; default ``adabench/partitions`` in the user's cache folder.

    Raises
    ------
    DataError
        If there are fewer training nodes than workers.
    """
    if len(training) < workers:
        raise DataError(
            f"{len(training)} training nodes cannot be shared among {workers} workers: "
            "each needs at least one; use fewer workers or a larger graph"
        )
    if workers == 1:
        return Partition(np.zeros(graph.num_nodes, dtype=np.int64), np.sort(training)[None, :])
    if method == "metis":
        part = _cached_metis(graph, training, workers, seed, cache or _default_cache())
    else:
        part = _by_rank(graph.num_nodes, training, workers, seed if method == "random" else None)
    return _balance(graph, training, workers, part)


def _by_rank(
    num_nodes: int, training: NDArray[np.int64], workers: int, seed: int | None
) -> NDArray[np.int64]:
    """Equal shares of the training nodes and of the others, by id or, with a seed, in random order."""
    part = np.empty(num_nodes, dtype=np.int64)
    others = np.setdiff1d(np.arange(num_nodes), training)
    rng = None if seed is None else np.random.default_rng(seed)
    for nodes in (np.sort(training), others):
        order = nodes if rng is None else rng.permutation(nodes)
        part[order] = np.arange(len(order)) * workers // max(len(order), 1)
    return part


def _balance(graph: Graph, training: NDArray[np.int64], workers: int, part: NDArray[np.int64]) -> Partition:
    """Move training nodes out of parts with too many, those first that have most neighbours where they go."""
    part = part.copy()
    share = len(training) // workers
    counts = np.bincount(part[training], minlength=workers)
    surplus = training[(counts > share)[part[training]]]
    neighbours = _neighbours_by_part(graph, surplus, part, workers)
    gains = neighbours - neighbours[np.arange(len(surplus)), part[surplus]][:, None]
    candidates = np.argsort(-gains, axis=None, kind="stable")
    missing = int(np.maximum(share - counts, 0).sum())
    for node, target in zip(*np.unravel_index(candidates, gains.shape), strict=True):
        if missing == 0:
            break
        origin = part[surplus[node]]
        # A node that has moved is no longer in a part that had too many.
        if counts[target] < share < counts[origin]:
            counts[origin] -= 1
            counts[target] += 1
            missing -= 1
            part[surplus[node]] = target
    shares = [np.sort(training[part[training] == worker])[:share] for worker in range(workers)]
    return Partition(part, np.stack(shares))


def _neighbours_by_part(
    graph: Graph, nodes: NDArray[np.int64], part: NDArray[np.int64], workers: int
) -> NDArray[np.int64]:
    """How many neighbours of each node are in each part: int64 (nodes, workers)."""
    arcs = scipy.sparse.csr_array(
        (np.ones(len(graph.indices), dtype=np.int32), graph.indices, graph.indptr),
        shape=(graph.num_nodes, graph.num_nodes),
    )
    member = scipy.sparse.csr_array(
        (np.ones(graph.num_nodes, dtype=np.int32), (np.arange(graph.num_nodes), part)),
        shape=(graph.num_nodes, workers),
    )
    return np.asarray((arcs[nodes] @ member).toarray(), dtype=np.int64)


def _cached_metis(
    graph: Graph, training: NDArray[np.int64], workers: int, seed: int, cache: Path
) -> NDArray[np.int64]:
    identity = f"{graph.fingerprint} {workers} {seed} {TRAINING_WEIGHT}:{OTHER_WEIGHT} {version('pymetis')} "
    key = hashlib.sha256(identity.encode() + training.tobytes()).hexdigest()
    file = cache / f"metis-{workers}-{key[:32]}.npz"
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            part: NDArray[np.int64] = archive["part"]
        return part
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("%s: not a readable partition (%s); it is computed again", file, error)
    part = _metis(graph, training, workers, seed)
    try:
        _store(file, part)
    except OSError as error:
        logger.warning("%s: the partition could not be kept for later runs (%s)", file, error)
    return part


def _metis(graph: Graph, training: NDArray[np.int64], workers: int, seed: int) -> NDArray[np.int64]:
    import pymetis

    weights = np.full(graph.num_nodes, OTHER_WEIGHT)
    weights[training] = TRAINING_WEIGHT
    adjacency = pymetis.CSRAdjacency(graph.indptr, graph.indices)
    _, part = pymetis.part_graph(
        workers, adjacency=adjacency, vweights=weights.tolist(), options=pymetis.Options(seed=seed % 2**31)
    )
    return np.asarray(part, dtype=np.int64)


def _store(file: Path, part: NDArray[np.int64]) -> None:
    """Write through a file of this process's own: all workers of a run may do so at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.stem}.{os.getpid()}.{id(part)}.part")
    with temporary.open("wb") as stream:
        np.savez(stream, part=part)
    temporary.replace(file)


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "adabench" / "partitions"
