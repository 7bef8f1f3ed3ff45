"""How often each node reads each row of the server's tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adabench.backends.interface import Served
from adabench.harness.estimate.search.problem import Choices, Floats
from adabench.usecases.interface import UseCase


@dataclass(frozen=True)
class Accesses:
    """Counts of the rows that the workers of each node read.

    Attributes
    ----------
    nodes, workers : int
        Number of nodes, and of workers per node.
    steps : int array
        Number of examined steps per node, over all its workers.
    counts : dict of str to int array
        Number of examined steps that read a row: nodes × rows, for each table of rows.
    """

    nodes: int
    workers: int
    steps: Choices
    counts: dict[str, Choices]

    def rates(self, served: Served) -> Floats:
        """Nodes × rows: reads of each row per step of one worker of the node."""
        if served.dense:
            return np.ones((self.nodes, served.keys))
        return np.asarray(self.counts[served.table] / self.steps[:, None])


def accesses_of(usecase: UseCase, tables: Sequence[Served], nodes: int, workers: int) -> Accesses:
    """Count rows in the training batches of all workers, for one epoch.

    Parameters
    ----------
    usecase : UseCase
        Use case with the batches.
    tables : sequence of Served
        Tables of the server.
    nodes, workers : int
        Number of nodes, and of workers per node.
    """
    counts = {one.table: np.zeros((nodes, one.keys), dtype=np.int64) for one in tables if not one.dense}
    made = np.zeros(nodes, dtype=np.int64)
    for worker in range(nodes * workers):
        node = worker // workers
        for batch in usecase.loaders(worker, nodes * workers).train:
            made[node] += 1
            for name, rows in usecase.keys(batch).items():
                counts[name][node, np.unique(rows.numpy())] += 1  # A row that is named twice is read once.
    return Accesses(nodes, workers, made, counts)
