"""The neighbour sampler in C++: its distribution, and exactness against a reference in NumPy."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from adabench.usecases.gcn._sampler import NeighborSampler
from adabench.usecases.gcn.generate import generate

GRAPH = generate(nodes=2000, classes=4, mean_degree=10, seed=3)
SAMPLER = NeighborSampler(GRAPH.indptr, GRAPH.indices)


def fan_in(targets: int, degree: int) -> NeighborSampler:
    """Targets 0 … targets - 1, each with the same neighbours: the `degree` nodes that follow them."""
    indptr = np.append(np.arange(targets + 1) * degree, [targets * degree] * degree)
    indices = np.tile(np.arange(targets, targets + degree, dtype=np.int32), targets)
    return NeighborSampler(indptr, indices)


def reference(
    seeds: NDArray[np.int64], fanouts: list[int], rng: np.random.Generator
) -> tuple[list[int], set[tuple[int, int]], list[int]]:
    """One node at a time: nodes in order of discovery, edges between their ids, edges of each hop."""
    nodes = [int(seed) for seed in seeds]
    known, edges, counts, first = set(nodes), set[tuple[int, int]](), [], 0
    for fanout in fanouts:
        frontier, before = nodes[first:], len(edges)
        first = len(nodes)
        for target in frontier:
            neighbours = GRAPH.indices[GRAPH.indptr[target] : GRAPH.indptr[target + 1]]
            if 0 <= fanout < len(neighbours):
                neighbours = rng.choice(neighbours, fanout, replace=False)
            edges.update((int(source), target) for source in neighbours)
            for source in map(int, neighbours):
                if source not in known:
                    known.add(source)
                    nodes.append(source)
        counts.append(len(edges) - before)
    return nodes, edges, counts


def seed_set(rng: np.random.Generator, size: int = 16) -> NDArray[np.int64]:
    return rng.choice(GRAPH.num_nodes, size, replace=False).astype(np.int64)


@pytest.mark.parametrize(("degree", "fanout"), [(6, 3), (6, 5), (17, 16), (40, 2), (64, 2), (65, 2), (90, 2)])
def test_every_subset_is_equally_likely(degree: int, fanout: int) -> None:
    targets = 1000
    sampler = fan_in(targets, degree)
    numbers = {subset: i for i, subset in enumerate(combinations(range(degree), fanout))}
    counts = np.zeros(len(numbers), dtype=np.int64)
    for stream in range(20 if math.comb(degree, fanout) < 200 else 60):
        node, row, _, _, _ = sampler.sample(np.arange(targets), [fanout], stream)
        for drawn in np.sort((node[row] - targets).reshape(targets, fanout), axis=1):
            counts[numbers[tuple(drawn.tolist())]] += 1
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("fanout", [1, 4, 16, -1])
def test_edges_are_those_of_the_graph_and_none_is_drawn_twice(fanout: int) -> None:
    rng = np.random.default_rng(0)
    for stream in range(50):
        node, row, col, _, _ = SAMPLER.sample(seed_set(rng), [fanout, fanout], stream)
        edges = list(zip(node[row].tolist(), node[col].tolist(), strict=True))
        assert len(set(edges)) == len(edges)
        for source, target in edges:
            assert source in GRAPH.indices[GRAPH.indptr[target] : GRAPH.indptr[target + 1]]


def test_counts_of_edges_equal_those_of_the_reference_on_1000_seed_sets() -> None:
    rng = np.random.default_rng(1)
    degrees = np.diff(GRAPH.indptr)
    ours, theirs = [], []
    for stream in range(1000):
        seeds = seed_set(rng)
        node, row, _, nodes_per_hop, edges_per_hop = SAMPLER.sample(seeds, [4, 4], stream)
        _, _, counts = reference(seeds, [4, 4], rng)
        assert edges_per_hop[0] == counts[0]
        frontier = node[len(seeds) : len(seeds) + nodes_per_hop[1]]
        assert edges_per_hop[1] == np.minimum(degrees[frontier], 4).sum()
        assert sum(edges_per_hop) == len(row)
        assert sum(nodes_per_hop) == len(node)
        ours.append(edges_per_hop[1])
        theirs.append(counts[1])
    # The second hop starts from the first one's draws; over all sets it has the reference's size.
    difference = np.subtract(ours, theirs)
    assert abs(difference.mean()) < 4 * difference.std() / math.sqrt(len(difference))


def test_without_a_limit_it_is_the_reference_exactly() -> None:
    rng = np.random.default_rng(2)
    for stream in range(1000):
        seeds = seed_set(rng, 4)
        node, row, col, _, counts = SAMPLER.sample(seeds, [-1, 10_000], stream)
        nodes, edges, expected_counts = reference(seeds, [-1, -1], rng)
        assert node.tolist() == nodes
        assert set(zip(node[row].tolist(), node[col].tolist(), strict=True)) == edges
        assert counts == expected_counts


def test_seeds_come_first_and_nodes_are_distinct() -> None:
    seeds = seed_set(np.random.default_rng(4))
    node, row, col, nodes_per_hop, _ = SAMPLER.sample(seeds, [8, 8], 0)
    assert node[: len(seeds)].tolist() == seeds.tolist()
    assert len(np.unique(node)) == len(node)
    assert nodes_per_hop[0] == len(seeds)
    assert row.max() == len(node) - 1
    assert col.max() < nodes_per_hop[0] + nodes_per_hop[1]


def test_a_stream_repeats_and_streams_differ() -> None:
    seeds = seed_set(np.random.default_rng(5))
    first, again, other = (SAMPLER.sample(seeds, [4, 4], stream)[0].tolist() for stream in (7, 7, 8))
    assert first == again
    assert first != other


def test_results_keep_their_memory_while_later_calls_reuse_what_was_let_go() -> None:
    rng = np.random.default_rng(6)
    seeds = [seed_set(rng) for _ in range(40)]
    kept = [SAMPLER.sample(one, [8, 8], 0)[0] for one in seeds[::2]]
    copies = [node.copy() for node in kept]
    for one in seeds[1::2]:
        SAMPLER.sample(one, [8, 8], 0)
    for node, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(node, copy)


def test_results_outlive_the_sampler_and_its_graph() -> None:
    sampler = NeighborSampler(GRAPH.indptr.copy(), GRAPH.indices.copy())
    node, row, col, _, _ = sampler.sample(np.arange(8), [4, 4], 0)
    expected = [array.tolist() for array in (node, row, col)]
    del sampler
    assert [array.tolist() for array in (node, row, col)] == expected


def test_threads_get_what_one_thread_gets() -> None:
    rng = np.random.default_rng(7)
    seeds = [seed_set(rng, 256) for _ in range(64)]

    def draw(stream: int) -> list[list[int]]:
        return [array.tolist() for array in SAMPLER.sample(seeds[stream], [8, 8], stream)[:3]]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(draw, range(len(seeds)))) == [draw(stream) for stream in range(len(seeds))]


def test_a_node_without_neighbours_and_no_seeds_at_all() -> None:
    sampler = NeighborSampler(np.array([0, 0, 1]), np.array([0], dtype=np.int32))
    node, row, col, nodes_per_hop, edges_per_hop = sampler.sample(np.array([0]), [16, 16], 0)
    assert (node.tolist(), row.tolist(), col.tolist()) == ([0], [], [])
    assert (nodes_per_hop, edges_per_hop) == ([1, 0, 0], [0, 0])
    assert sampler.sample(np.array([], dtype=np.int64), [16], 0)[0].tolist() == []
    assert (sampler.num_nodes, sampler.num_arcs) == (2, 1)


@pytest.mark.parametrize(
    ("seeds", "fanouts", "message"),
    [
        ([2000], [4], r"seed node 2000 is outside \[0, 2000\)"),
        ([-1], [4], "seed node -1 is outside"),
        ([3, 5, 3], [4], "seed node 3 is given twice"),
        ([3], [-2], "fan-out -2 must be a number of neighbours, or -1 for all of them"),
        ([[3]], [4], "seeds must have one dimension, not 2"),
    ],
)
def test_bad_calls_are_refused_and_the_next_call_is_right(
    seeds: list[int], fanouts: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SAMPLER.sample(np.array(seeds), fanouts, 0)
    assert SAMPLER.sample(np.array([3, 5]), [0], 0)[0].tolist() == [3, 5]


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([], [], "indptr must start with 0 and end with the number of arcs, 0"),
        ([0, 1], [0, 0], "end with the number of arcs, 2"),
        ([1, 2], [0, 0], "indptr must start with 0"),
        ([0, 2, 1, 2], [0, 0], "goes from 2 to 1 at node 1"),
        ([0, 1], [1], r"node 1 in indices is outside \[0, 1\)"),
        ([0, 1], [-1], "node -1 in indices is outside"),
    ],
)
def test_bad_graphs_are_refused(indptr: list[int], indices: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborSampler(np.array(indptr, dtype=np.int64), np.array(indices, dtype=np.int32))


def test_arrays_of_another_type_are_refused_rather_than_copied() -> None:
    with pytest.raises(TypeError):
        NeighborSampler(GRAPH.indptr, GRAPH.indices.astype(np.int64))
    with pytest.raises(TypeError):
        SAMPLER.sample(np.array([1.0]), [4], 0)
