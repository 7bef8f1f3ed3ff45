"""Which worker trains on which samples, by the rows that they read or by what they are, and homes of rows."""

from __future__ import annotations

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

__all__ = ["PLACEMENTS", "Placement", "SamplePlacement", "greedy_parts", "most_reading"]

Placement = Literal["random", "greedy", "label", "cluster"]
"""How samples are dealt to workers.

``random``: in turn, whatever they are. ``greedy``: those that read the same rows to the same worker.
``label``: sorted by what is to be learned, so that workers learn different things. ``cluster``: sorted by a
group that the data have, such as a user, so that each is one worker's, but for those on the borders.
"""
PLACEMENTS: tuple[Placement, ...] = ("random", "greedy", "label", "cluster")

Rows = NDArray[np.int32] | NDArray[np.int64]
Reads = Callable[[NDArray[np.int64]], Rows]
"""Numbers of samples (n,) -> the rows that each of them reads (n, k), int32 or int64."""

PASSES = 3
"""How often all samples are dealt; on FB15k-237 a fourth time makes one read in a thousand more local."""
SEED = 20_251_123
"""Fixed: who trains on what does not change with the seed of a run, so that one policy fits all blocks of a
study."""
BLOCK = 1 << 16
"""Samples that are looked at together."""


@dataclass
class SamplePlacement:
    """Deals samples to workers; all shares are disjoint, and equal on all nodes.

    Attributes
    ----------
    placement : str
        One of `PLACEMENTS`.
    samples : int
        How many there are; those that do not fill the workers' shares are left out.
    tables : dict of str to int
        Qualified names of parameters, and the rows of each. Together they are numbered one table after the
        other.
    reads : callable
        Numbers of samples -> rows that each of them reads, in that numbering.
    orders : dict of str to callable
        For ``label`` and ``cluster``, what samples are sorted by: numbers (samples,).
    what : str
        What the samples are.
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
        """Numbers of the samples of worker `rank`.

        Parameters
        ----------
        rank : int
        sizes : tuple of int
            Samples of a step of each worker, in proportion to which it has some.

        Raises
        ------
        ValueError
            If there is no such worker.
        DataError
            If the share does not fill a batch, or shares of different sizes are to be dealt greedily.
        """
        require_worker(rank, len(sizes))
        if self.placement == "random":
            return strided_share(self.samples, rank, sizes, self.what)
        if sizes not in self._shares:
            self._shares[sizes] = self._dealt(sizes)
        return self._shares[sizes][rank]

    def home_rows(self, rank: int, sizes: tuple[int, ...]) -> dict[str, Tensor]:
        """The rows that no other worker's samples read more often; none where samples are dealt at random.

        Parameters
        ----------
        rank, sizes
            As for `share`.

        Returns
        -------
        dict of str to Tensor
            Qualified parameter name -> ascending int64 row ids; disjoint among the workers.
        """
        if self.placement == "random":
            return {}
        self.share(rank, sizes)  # raises if there is none
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
                    "placement is 'greedy', which deals equal shares, and batches of "
                    f"{', '.join(map(str, sizes))} {self.what} need others: use random, label or cluster"
                )
            rows = sum(self.tables.values())
            parts = greedy_parts(self.reads, sum(lengths), rows, len(sizes), SEED)
            return [np.flatnonzero(parts == rank) for rank in range(len(sizes))]
        order = np.argsort(self.orders[self.placement](), kind="stable")[: sum(lengths)]
        return np.split(order, np.cumsum(lengths)[:-1])


def greedy_parts(
    reads: Reads, samples: int, rows: int, parts: int, seed: int, passes: int = PASSES
) -> NDArray[np.uint16]:
    """Deal samples to parts of equal size so that each row is read by few of them.

    Linear deterministic greedy over the hypergraph of samples and rows: samples come in their order, and each
    goes to the part that has most of its rows, less the fuller that part is. In further passes a row is in
    the part that read it most in the one before (Nishimura and Ugander, *Restreaming Graph Partitioning*,
    KDD 2013, who do this to graphs). Memory grows with rows, by 18 bytes each, and by 10 bytes per sample.

    Parameters
    ----------
    reads : callable
        Numbers of samples -> the rows that each reads.
    samples, rows : int
        How many there are.
    parts : int
        At most 4096; no part gets more than its share of the samples, rounded up.
    seed : int
        Decides between parts that are alike.
    passes : int
        How often all samples are dealt, 1 or more.

    Returns
    -------
    uint16 array (samples,)
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
    """The first of the shares whose samples read each row most, or -1 where none does: (rows,).

    Parameters
    ----------
    reads : callable
        Numbers of samples -> the rows that each reads.
    shares : list of int64 arrays
        Numbers of samples.
    rows : int
        How many there are.
    """
    readers = Readers(rows)
    for number, share in enumerate(shares):
        for block in _blocks(share):
            readers.add(number, np.ascontiguousarray(reads(block)))
    return readers.most()


def _blocks(numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (numbers[start : start + BLOCK] for start in range(0, len(numbers), BLOCK))
