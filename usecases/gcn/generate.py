"""A graph that needs no data: power-law degrees, communities that are the labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.gcn.graph import Graph, build_graph

__all__ = ["generate"]


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

    Each node has a class and a weight with a Pareto tail. An edge picks one end by weight; the other comes,
    again by weight, from the same class with probability `homophily`, otherwise from the whole graph. The
    model is that of Karrer and Newman, Phys. Rev. E 83, 016107 (2011).

    Parameters
    ----------
    nodes, classes : int
        Sizes.
    mean_degree : float
        Edges drawn per node, times two; loops and repeated edges among them are dropped.
    exponent : float
        Of the power law that the degrees follow, above 2.
    homophily : float
        In ``[0, 1]``; a share ``homophily + (1 - homophily) / classes`` of the edges joins equal classes.
    seed : int
        Equal seeds give equal graphs.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=nodes)
    # A hub must not exceed the square root of the total weight, or its edges would mostly repeat each other.
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
