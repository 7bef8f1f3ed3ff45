"""Which worker trains on which ratings: users stay together, so that their rows are one worker's."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adabench.usecases.batches import share_length

__all__ = ["Shares"]


class Shares:
    """The training ratings, ordered by user and cut into pieces of equal length.

    Parameters
    ----------
    rows : array
        Numbers of the training ratings, int64 (n,).
    users : array
        Whose rating each of them is, integers (n,).
    batch : int
        Ratings of a training step.
    """

    def __init__(self, rows: NDArray[np.int64], users: NDArray[np.int32], batch: int) -> None:
        order = np.argsort(users, kind="stable")
        self._rows, self._users = rows[order], users[order]
        self._batch = batch

    def of(self, rank: int, world: int) -> NDArray[np.int64]:
        """The ratings of worker `rank` of `world`.

        Raises
        ------
        ValueError
            If there is no such worker.
        DataError
            If they do not fill a batch.
        """
        return self._rows[self._piece(rank, world)]

    def home_users(self, rank: int, world: int) -> Tensor:
        """Ascending users, int64, of whom worker `rank` has the first rating: each is one worker's."""
        piece = self._piece(rank, world)
        mine = self._users[piece]
        before = self._users[piece.start - 1] if piece.start else -1
        return torch.from_numpy(np.unique(mine[mine != before]).astype(np.int64))

    def _piece(self, rank: int, world: int) -> slice:
        share = share_length(len(self._rows), rank, world, self._batch, "ratings")
        return slice(rank * share, (rank + 1) * share)
