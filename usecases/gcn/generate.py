"""Generates a graph with power-law degrees, whose labels are communities."""

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.validation import require_memory
from adabench.usecases.gcn.graph import Graph, build_graph

BYTES_PER_EDGE = 100
"""Memory during generation: two ends in both directions, and the orders by which they are sorted."""


def generate(
    *,
    nodes: int = 10_000,
    classes: int = 16,
    mean_degree: float = 12.0,
    exponent: float = 2.5,
    homophily: float = 0.55,
    seed: int = 0,
) -> Graph:
    """Draw a graph from a degree-corrected planted partition.

    Each node has a class, and a weight with a Pareto tail. One end of an edge is drawn by weight. The other
    end is also drawn by weight, with probability `homophily` from the same class and otherwise from the whole
    graph. The model is by Karrer and Newman, Phys. Rev. E 83, 016107 (2011).

    Parameters
    ----------
    nodes, classes : int
        Numbers of nodes and of classes.
    mean_degree : float
        Number of drawn edges per node, times two. Loops and repeated edges among them are dropped.
    exponent : float
        Exponent of the power law of the degrees, above 2.
    homophily : float
        Homophily in ``[0, 1]``. A share ``homophily + (1 - homophily) / classes`` of the edges joins equal
        classes.
    seed : int
        Seed; equal seeds give equal graphs.

    Raises
    ------
    DataError
        If the edges exceed the machine's memory.
    """
    require_memory("vertices", nodes, BYTES_PER_EDGE * mean_degree / 2)
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=nodes)
    # A hub must not exceed the square root of the total weight, or most of its edges would be repeated.
    weights = np.minimum(rng.pareto(exponent - 1, size=nodes) + 1, np.sqrt(nodes * mean_degree))
    edges = round(nodes * mean_degree / 2)
    sources = _draw(rng, np.arange(nodes), weights, edges)
    targets = _draw(rng, np.arange(nodes), weights, edges)
    inside = rng.random(edges) < homophily
    for label in range(classes):
        chosen = np.flatnonzero(inside & (labels[sources] == label))
        members = np.flatnonzero(labels == label)
        targets[chosen] = _draw(rng, members, weights[members], len(chosen))
    return build_graph(sources, targets, labels, where="generated graph")


def _draw(
    rng: np.random.Generator, nodes: NDArray[np.int64], weights: NDArray[np.float64], count: int
) -> NDArray[np.int64]:
    if count == 0:
        return np.empty(0, dtype=np.int64)
    return rng.choice(nodes, size=count, p=weights / weights.sum())
