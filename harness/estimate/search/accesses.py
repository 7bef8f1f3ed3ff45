"""How often each node reads each row of the server's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from adabench.backends.interface import Served
from adabench.harness.estimate.search.problem import Choices, Floats
from adabench.usecases.interface import UseCase

__all__ = ["Accesses", "accesses_of"]


@dataclass(frozen=True)
class Accesses:
    """What the workers of each node read.

    Attributes
    ----------
    nodes, workers : int
        Of the cluster, and of each node.
    steps : int array
        Of all of a node's workers together, which were looked at.
    counts : dict of str to int array
        Nodes × rows of each table of rows: in how many of these steps a row was read.
    """

    nodes: int
    workers: int
    steps: Choices
    counts: dict[str, Choices]

    def rates(self, served: Served) -> Floats:
        """Nodes × rows: how often a step of one worker of the node reads each."""
        if served.dense:
            return np.ones((self.nodes, served.keys))
        return np.asarray(self.counts[served.table] / self.steps[:, None])


def accesses_of(
    usecase: UseCase, tables: Sequence[Served], nodes: int, workers: int, steps: int | None = None
) -> Accesses:
    """Go through the training batches of all workers, one pass or so many steps of each at most.

    Parameters
    ----------
    usecase : UseCase
    tables : sequence of Served
    nodes, workers : int
    steps : int, optional
    """
    counts = {one.table: np.zeros((nodes, one.keys), dtype=np.int64) for one in tables if not one.dense}
    made = np.zeros(nodes, dtype=np.int64)
    for worker in range(nodes * workers):
        node = worker // workers
        for batch in islice(usecase.loaders(worker, nodes * workers).train, steps):
            made[node] += 1
            for name, rows in usecase.keys(batch).items():
                counts[name][node, np.unique(rows.numpy())] += 1  # a row named twice is read once
    return Accesses(nodes, workers, made, counts)
