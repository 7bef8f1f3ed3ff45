"""The neighbour sampler against the best vectorised sampler that NumPy allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from adabench.usecases.gcn._sampler import NeighborSampler
from adabench.usecases.gcn.generate import generate
from adabench.usecases.gcn.graph import Graph
from adabench.usecases.gcn.load import load

if TYPE_CHECKING:
    from tests.perf.conftest import Ratio

FANOUTS = [16, 16]
GRAPHS = ["arxiv_like", "generated"]
ARXIV_LIKE = Path(__file__).resolve().parents[3] / "shared" / "data" / "arxiv_like"

Sample = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class NumpySampler:
    """Floyd's algorithm on all nodes of a hop at once, and numbering through a table of all nodes.

    The i-th draws of all nodes are one row, so that comparing them with the i before runs over contiguous
    memory; draws are 32-bit numbers. Faster than random keys and a partial sort of each list.
    """

    def __init__(self, graph: Graph) -> None:
        self.indptr, self.indices = graph.indptr, graph.indices
        self.number = np.full(graph.num_nodes, -1, dtype=np.int64)
        self.rng = np.random.default_rng(0)

    def sample(self, seeds: NDArray[np.int64]) -> Sample:
        number = self.number
        nodes, rows, columns, first, count = [seeds], [], [], 0, len(seeds)
        number[seeds] = np.arange(count)
        for fanout in FANOUTS:
            begin = self.indptr[nodes[-1]]
            degree = self.indptr[nodes[-1] + 1] - begin
            target = np.arange(first, count)
            large = degree > fanout
            few = degree[~large]
            shift = np.repeat(begin[~large] - np.cumsum(few) + few, few)
            drawn = self.some_of(begin[large], degree[large], fanout)
            source = self.indices[np.concatenate([np.arange(len(shift)) + shift, drawn])]
            columns += [np.repeat(target[~large], few), np.tile(target[large], fanout)]
            found = source[number[source] < 0]
            # Written backwards, the first occurrence of a node is the one that stays.
            number[found[::-1]] = np.arange(len(found) - 1, -1, -1)
            new = found[number[found] == np.arange(len(found))].astype(np.int64)
            number[new] = np.arange(count, count + len(new))
            rows.append(number[source])
            nodes.append(new)
            first, count = count, count + len(new)
        node = np.concatenate(nodes)
        number[node] = -1
        return node, np.concatenate(rows), np.concatenate(columns)

    def some_of(self, begin: NDArray[np.int64], degree: NDArray[np.int64], fanout: int) -> NDArray[np.int64]:
        bound = (degree - fanout).astype(np.int32)
        uniform = self.rng.random((fanout, len(bound)), dtype=np.float32)
        drawn = (uniform * (bound + np.arange(1, fanout + 1, dtype=np.int32)[:, None])).astype(np.int32)
        for i in range(1, fanout):
            taken = (drawn[:i] == drawn[i]).any(axis=0)
            drawn[i] = np.where(taken, bound + i, drawn[i])
        return (drawn + begin).ravel()


@pytest.fixture(scope="module")
def graphs() -> Callable[[str], Graph]:
    """`arxiv_like`, and for machines without it a generated graph of about its size."""

    @cache
    def graph(name: str) -> Graph:
        if name == "generated":
            return generate(nodes=169_343, classes=40, mean_degree=14.0, homophily=0.65)
        if not ARXIV_LIKE.is_dir():
            pytest.skip("no arxiv_like in ../shared/data, beside the repository")
        return load(name, ARXIV_LIKE)

    return graph


@pytest.mark.parametrize("batch", [128, 1024])
@pytest.mark.parametrize("name", GRAPHS)
def test_fraction_of_the_time_of_a_vectorised_sampler(
    ratio: Ratio, graphs: Callable[[str], Graph], name: str, batch: int
) -> None:
    graph, rng = graphs(name), np.random.default_rng(0)
    seeds = [rng.choice(graph.num_nodes, batch, replace=False) for _ in range(8192 // batch)]
    ours = NeighborSampler(graph.indptr, graph.indices)
    theirs = NumpySampler(graph).sample
    check_same_work(ours, theirs, seeds)

    def sample_ours() -> None:
        for stream, one in enumerate(seeds):
            ours.sample(one, FANOUTS, stream)

    def sample_theirs() -> None:
        for one in seeds:
            theirs(one)

    ratio(sample_ours, sample_theirs)


def check_same_work(
    ours: NeighborSampler, theirs: Callable[[NDArray[np.int64]], Sample], seeds: list[NDArray[np.int64]]
) -> None:
    """As many nodes and edges but for chance, no edge twice, and every number in use."""
    sizes = np.zeros((2, 2))
    for stream, one in enumerate(seeds):
        for side, (node, row, column) in enumerate((ours.sample(one, FANOUTS, stream)[:3], theirs(one))):
            assert len(np.unique(node)) == len(node)
            assert len(np.unique(np.concatenate([np.arange(len(one)), row]))) == len(node)
            assert len(np.unique(row * len(node) + column)) == len(row) == len(column)
            sizes[side] += len(node), len(row)
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=0.02)
