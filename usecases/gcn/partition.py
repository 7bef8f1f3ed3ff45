"""Division of a graph's nodes among workers."""

import hashlib
import logging
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.batches import numbers_of_ranges
from adabench.usecases.gcn.graph import Graph
from adabench.usecases.interface import DataError

Method = Literal["metis", "random", "contiguous"]
METHODS: tuple[Method, ...] = ("metis", "random", "contiguous")

# Weights of nodes. A training node costs its worker a sample. Any node can be in the worker's neighborhoods,
# at a smaller cost.
TRAINING_WEIGHT, OTHER_WEIGHT = 3, 1
NODES_AT_ONCE = 1 << 14
"""Number of nodes whose neighbors are in memory together."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Partition:
    """A division of the graph among workers.

    Attributes
    ----------
    part : int64 (nodes,)
        Worker with each node in its neighborhood.
    training : list of int64 arrays
        Ascending training nodes of each worker. Their numbers are in proportion to the batches. With equal
        batches, all workers have equal numbers, and a remainder, smaller than the number of workers, is left
        out.
    """

    part: NDArray[np.int64]
    training: list[NDArray[np.int64]]


def partition(
    graph: Graph,
    training: NDArray[np.int64],
    sizes: Sequence[int],
    method: Method,
    seed: int,
    cache: Path | None = None,
) -> Partition:
    """Divide all nodes, and the training nodes, among workers.

    Parameters
    ----------
    graph : Graph
        Graph to divide.
    training : int64 (training nodes,)
        Training nodes.
    sizes : sequence of int
        Number of training nodes in a step of each worker, at least 1.
    method : "metis", "random" or "contiguous"
        Method of the division. METIS cuts few edges and balances training nodes (Karypis and Kumar, SIAM J.
        Sci. Comput. 20, 1998). The others ignore edges and divide at random or by node id.
    seed : int
        Seed of METIS and of random divisions.
    cache : Path, optional
        Folder for results of METIS; default ``adabench/partitions`` in the user's cache folder.

    Raises
    ------
    DataError
        If there are fewer training nodes than workers.
    """
    workers = len(sizes)
    if len(training) < workers:
        raise DataError(
            f"{len(training)} training nodes cannot be shared among {workers} workers: "
            "each needs at least one; use fewer workers or a larger graph"
        )
    if workers == 1:
        return Partition(np.zeros(graph.num_nodes, dtype=np.int64), [np.sort(training)])
    if method == "metis":
        part = _cached_metis(graph, training, sizes, seed, cache or _default_cache())
    else:
        part = _by_rank(graph.num_nodes, training, sizes, seed if method == "random" else None)
    return _balance(graph, training, lengths_of(len(training), sizes), part)


def lengths_of(count: int, sizes: Sequence[int]) -> list[int]:
    """Return the number of the `count` training nodes for each worker, with `sizes` nodes per step.

    All workers make equal numbers of steps. The last step can be smaller.
    """
    steps, left = divmod(count, sum(sizes))
    spare = left - len(sizes)
    last = [1 + spare * size // sum(sizes) if spare >= 0 else 0 for size in sizes]
    return [steps * size + more for size, more in zip(sizes, last, strict=True)]


def _by_rank(
    num_nodes: int, training: NDArray[np.int64], sizes: Sequence[int], seed: int | None
) -> NDArray[np.int64]:
    """Return shares of the training nodes and of the others, by id or, with a seed, in random order."""
    ends = np.cumsum(sizes)
    part = np.empty(num_nodes, dtype=np.int64)
    others = np.setdiff1d(np.arange(num_nodes), training)
    rng = None if seed is None else np.random.default_rng(seed)
    for nodes in (np.sort(training), others):
        order = nodes if rng is None else rng.permutation(nodes)
        turns = np.arange(len(order)) * ends[-1] // max(len(order), 1)
        part[order] = np.searchsorted(ends, turns, side="right")
    return part


def _balance(
    graph: Graph, training: NDArray[np.int64], lengths: list[int], part: NDArray[np.int64]
) -> Partition:
    """Move training nodes out of parts with too many, first nodes with most neighbors in their new part."""
    part = part.copy()
    workers, wanted = len(lengths), np.array(lengths)
    counts = np.bincount(part[training], minlength=workers)
    surplus = training[(counts > wanted)[part[training]]]
    neighbours = _neighbours_by_part(graph, surplus, part, workers)
    gains = neighbours - neighbours[np.arange(len(surplus)), part[surplus]][:, None]
    candidates = np.argsort(-gains, axis=None, kind="stable")
    missing = int(np.maximum(wanted - counts, 0).sum())
    for node, target in zip(*np.unravel_index(candidates, gains.shape), strict=True):
        if missing == 0:
            break
        origin = part[surplus[node]]
        # A node that was moved is in a part that needed it, so it is not moved again.
        if counts[target] < wanted[target] and counts[origin] > wanted[origin]:
            counts[origin] -= 1
            counts[target] += 1
            missing -= 1
            part[surplus[node]] = target
    shares = [np.sort(training[part[training] == worker])[: lengths[worker]] for worker in range(workers)]
    return Partition(part, shares)


def _neighbours_by_part(
    graph: Graph, nodes: NDArray[np.int64], part: NDArray[np.int64], workers: int
) -> NDArray[np.int64]:
    """Return the number of each node's neighbors in each part: int64 (nodes, workers)."""
    found = np.zeros((len(nodes), workers), dtype=np.int64)
    for start in range(0, len(nodes), NODES_AT_ONCE):
        some = nodes[start : start + NODES_AT_ONCE]
        node, arcs = numbers_of_ranges(graph.indptr[some], graph.indptr[some + 1])
        parts = part[graph.indices[arcs]]
        counts = np.bincount(node * workers + parts, minlength=len(some) * workers)
        found[start : start + len(some)] = counts.reshape(-1, workers)
    return found


def _cached_metis(
    graph: Graph, training: NDArray[np.int64], sizes: Sequence[int], seed: int, cache: Path
) -> NDArray[np.int64]:
    workers = len(sizes)
    who = workers if _are_equal(sizes) else ",".join(map(str, sizes))
    identity = f"{graph.fingerprint} {who} {seed} {TRAINING_WEIGHT}:{OTHER_WEIGHT} {version('pymetis')} "
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
    part = _metis(graph, training, sizes, seed)
    try:
        _store(file, part)
    except OSError as error:
        logger.warning("%s: the partition could not be kept for later runs (%s)", file, error)
    return part


def _metis(graph: Graph, training: NDArray[np.int64], sizes: Sequence[int], seed: int) -> NDArray[np.int64]:
    import pymetis

    weights = np.full(graph.num_nodes, OTHER_WEIGHT)
    weights[training] = TRAINING_WEIGHT
    adjacency = pymetis.CSRAdjacency(graph.indptr, graph.indices)
    _, part = pymetis.part_graph(
        len(sizes),
        adjacency=adjacency,
        vweights=weights.tolist(),
        tpwgts=None if _are_equal(sizes) else [size / sum(sizes) for size in sizes],
        options=pymetis.Options(seed=seed % 2**31),
    )
    return np.asarray(part, dtype=np.int64)


def _are_equal(sizes: Sequence[int]) -> bool:
    return len(set(sizes)) == 1


def _store(file: Path, part: NDArray[np.int64]) -> None:
    """Write through a temporary file of this process, because all workers of a run may do so concurrently."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.stem}.{os.getpid()}.{id(part)}.part")
    with temporary.open("wb") as stream:
        np.savez(stream, part=part)
    temporary.replace(file)


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "adabench" / "partitions"
