"""Division of samples among workers by their rows or labels, and the resulting homes of rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adabench.usecases.common._partition import Greedy, Readers
from adabench.usecases.common.batches import require_worker, share_lengths, strided_share
from adabench.usecases.interface import DataError

Placement = Literal["random", "greedy", "label", "cluster"]
"""Methods to assign samples to workers.

``random``: in turn, independent of their contents. ``greedy``: samples with common rows go to one worker.
``label``: sorted by the label, so that workers learn different things. ``cluster``: sorted by a group in the
data, such as a user. A group then belongs to one worker, except at the borders. """
PLACEMENTS: tuple[Placement, ...] = ("random", "greedy", "label", "cluster")

Rows = NDArray[np.int32] | NDArray[np.int64]
Reads = Callable[[NDArray[np.int64]], Rows]
"""Function that returns the rows (n, k), int32 or int64, that samples with indices (n,) read."""

PASSES = 3
"""Number of passes over all samples. On FB15k-237, a fourth pass would make 0.1 % more reads local."""
SEED = 20_251_123
"""Constant, so that assignments do not depend on a run's seed, and one policy fits all blocks."""
BLOCK = 1 << 16
"""Number of samples that are processed together."""


@dataclass
class SamplePlacement:
    """Assigns samples to workers. All shares are disjoint, and equal on all nodes.

    Attributes
    ----------
    placement : str
        Method of the assignment, one of `PLACEMENTS`.
    samples : int
        Number of samples. Samples that do not fill the workers' shares are left out.
    tables : dict of str to int
        Number of rows of each parameter, by qualified name. All rows together are numbered one table after
        the other.
    reads : callable
        Function that returns the rows, in that numbering, for an array of sample indices.
    orders : dict of str to callable
        Sort key of each sample (samples,), for the methods ``label`` and ``cluster``.
    what : str
        Name of the samples for messages.
    """

    placement: Placement
    samples: int
    tables: Mapping[str, int]
    reads: Reads
    orders: Mapping[str, Callable[[], NDArray[Any]]]
    what: str = "samples"
    _shares: dict[tuple[int, ...], list[NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False
    )
    _homes: dict[tuple[int, ...], NDArray[np.int32]] = field(default_factory=dict, init=False, repr=False)

    def share(self, rank: int, sizes: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the indices of the samples of worker `rank`.

        Parameters
        ----------
        rank : int
            Index of the worker.
        sizes : tuple of int
            Number of samples in a step of each worker. The shares are in proportion to these numbers.

        Raises
        ------
        ValueError
            If the worker does not exist.
        DataError
            If the share does not fill a batch, or if shares of different sizes should be assigned greedily.
        """
        require_worker(rank, len(sizes))
        if self.placement == "random":
            return strided_share(self.samples, rank, sizes, self.what)
        if sizes not in self._shares:
            self._shares[sizes] = self._dealt(sizes)
        return self._shares[sizes][rank]

    def home_rows(self, rank: int, sizes: tuple[int, ...]) -> dict[str, Tensor]:
        """Return the rows that this worker's samples read most often; none if samples are assigned at random.

        The arguments are those of `share`. The result has ascending int64 row ids by qualified parameter
        name. The rows of different workers are disjoint.
        """
        if self.placement == "random":
            return {}
        self.share(rank, sizes)  # raises an error if there is none
        if sizes not in self._homes:
            self._homes[sizes] = most_reading(self.reads, self._shares[sizes], sum(self.tables.values()))
        ends = np.cumsum(list(self.tables.values()))
        parts = np.split(self._homes[sizes], ends[:-1])
        own = (torch.from_numpy(np.flatnonzero(part == rank)) for part in parts)
        return dict(zip(self.tables, own, strict=True))

    def _dealt(self, sizes: tuple[int, ...]) -> list[NDArray[np.int64]]:
        lengths = share_lengths(self.samples, sizes, self.what)
        if self.placement == "greedy":
            if len(set(sizes)) > 1:
                raise DataError(
                    "placement is 'greedy', which makes equal shares, but batches of "
                    f"{', '.join(map(str, sizes))} {self.what} need unequal ones: use random, label or "
                    f"cluster"
                )
            rows = sum(self.tables.values())
            parts = greedy_parts(self.reads, sum(lengths), rows, len(sizes), SEED)
            return [np.flatnonzero(parts == rank) for rank in range(len(sizes))]
        order = np.argsort(self.orders[self.placement](), kind="stable")[: sum(lengths)]
        return np.split(order, np.cumsum(lengths)[:-1])


def greedy_parts(
    reads: Reads, samples: int, rows: int, parts: int, seed: int, passes: int = PASSES
) -> NDArray[np.uint16]:
    """Divide samples into parts of equal size, such that each row is read by few parts.

    The method is linear deterministic greedy on the hypergraph of samples and rows. Samples are processed in
    order. Each goes to the part with most of its rows, where the rows of a fuller part have less weight. In
    further passes, a row is in the part that read it most often in the previous pass (Nishimura and Ugander,
    *Restreaming Graph Partitioning*, KDD 2013, for graphs). It needs 18 bytes of memory per row and 10 bytes
    per sample.

    Parameters
    ----------
    reads : callable
        Function that returns the rows of each sample, for an array of sample indices.
    samples, rows : int
        Numbers of samples and of rows.
    parts : int
        Number of parts, at most 4096. No part gets more samples than its equal share, rounded up.
    seed : int
        Seed for the choice between equally good parts.
    passes : int
        Number of passes over all samples, at least 1.

    Returns
    -------
    uint16 array (samples,)
        Part of each sample.
    """
    greedy = Greedy(rows, parts, samples, seed)
    dealt = np.empty(samples, dtype=np.uint16)
    for number in range(passes):
        if number:
            greedy.again(most_reading(reads, [np.flatnonzero(dealt == part) for part in range(parts)], rows))
        for block in _blocks(np.arange(samples)):
            dealt[block] = greedy.deal(np.ascontiguousarray(reads(block)))
    return dealt


def most_reading(reads: Reads, shares: list[NDArray[np.int64]], rows: int) -> NDArray[np.int32]:
    """Return the first of the shares that read each row most often, or -1 if none reads it: (rows,).

    Parameters
    ----------
    reads : callable
        Function that returns the rows of each sample, for an array of sample indices.
    shares : list of int64 arrays
        Sample indices of each share.
    rows : int
        Number of rows.
    """
    readers = Readers(rows)
    for number, share in enumerate(shares):
        for block in _blocks(share):
            readers.add(number, np.ascontiguousarray(reads(block)))
    return readers.most()


def _blocks(numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (numbers[start : start + BLOCK] for start in range(0, len(numbers), BLOCK))
