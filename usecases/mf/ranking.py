"""Quality of ranked items: normalized discounted cumulative gain."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adabench.usecases.common.batches import numbers_of_ranges

PAIRS_AT_ONCE = 1 << 18
"""Number of pairs of a wanted and any item that are compared together."""


class ItemsOf:
    """The items of each user, with fast access by user.

    Parameters
    ----------
    users, items : array
        Pairs of user and item, int32 (n,) each.
    count : int
        Number of users.
    """

    def __init__(
        self, users: NDArray[np.signedinteger[Any]], items: NDArray[np.signedinteger[Any]], count: int
    ) -> None:
        self._items = items[np.argsort(users, kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=count))])

    def users(self) -> NDArray[np.int64]:
        """Return the users with at least one item, ascending."""
        return np.flatnonzero(np.diff(self._starts))

    def pairs(self, users: NDArray[np.int64]) -> Tensor:
        """Return an index in `users` and an item, for each item of each of these users: int64 (2, pairs)."""
        places, rated = numbers_of_ranges(self._starts[users], self._starts[users + 1])
        return torch.from_numpy(np.stack([places, self._items[rated].astype(np.int64)]))


def ndcg(scores: Tensor, wanted: Tensor, cutoff: int) -> Tensor:
    """Return the normalized discounted cumulative gain of each row of scores. A wanted item has a gain of 1.

    Items with equal scores share the gain of their ranks equally. A model with equal scores for all items
    gets the expected gain of a random order.

    Parameters
    ----------
    scores : Tensor
        Scores, float32 (users, items), with -inf for items that are not ranked.
    wanted : Tensor
        Pairs of a row and an item, int64 (2, pairs), at least one for each row.
    cutoff : int
        Number of ranks that count, at least 1.

    Returns
    -------
    Tensor
        Gains, float64 (users,), each from 0 to 1.
    """
    rows, items = wanted
    discounts = 1 / torch.log2(torch.arange(2, cutoff + 2, dtype=torch.float64))
    summed = torch.cat([torch.zeros(1, dtype=torch.float64), discounts.cumsum(0)])
    own = scores[rows, items][:, None]
    # Pairs are compared with all items in blocks that fit into the cache. The allocator would return larger
    # blocks to the kernel, which clears them each time.
    at_once = max(1, PAIRS_AT_ONCE // scores.shape[1])
    higher, equal = torch.empty(2, len(rows), dtype=torch.int64)
    for part in torch.arange(len(rows)).split(at_once):
        ranked = scores[rows[part]]
        higher[part], equal[part] = (ranked > own[part]).sum(1), (ranked == own[part]).sum(1)
    first, last = higher.clamp(max=cutoff), (higher + equal).clamp(max=cutoff)
    gained = (summed[last] - summed[first]) / equal
    total = torch.zeros(len(scores), dtype=torch.float64).index_add_(0, rows, gained)
    best = summed[torch.bincount(rows, minlength=len(scores)).clamp(max=cutoff)]
    return total / best
