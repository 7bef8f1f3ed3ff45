"""Filtered ranks: where the right entity stands among all that would not be right as well."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Answers", "ranks", "summary"]

HITS = (1, 3, 10)
_BLOCK = 1 << 20  # triples that are looked through at a time


class Answers:
    """All known entities that are right for a query, which is a relation with a head or with a tail.

    Parameters
    ----------
    asked : array
        Triples (n, 3) whose queries will be asked for.
    known : iterable of array
        All known triples, (n, 3) each; of them, those without such a query are not kept.
    given, wanted : int
        Column of the entity that a query has, and of the one that it wants: 0 or 2.
    relations : int
        How many there are.
    """

    def __init__(
        self,
        asked: NDArray[np.int32],
        known: Iterable[NDArray[np.int32]],
        given: int,
        wanted: int,
        relations: int,
    ) -> None:
        self._given, self._relations = given, relations
        self._queries = np.unique(self._query(asked))
        found = []
        for part in known:
            for start in range(0, len(part), _BLOCK):
                block = part[start : start + _BLOCK]
                query = self._query(block)
                kept = np.isin(query, self._queries)
                found.append(np.stack([query[kept], block[kept, wanted].astype(np.int64)], axis=1))
        pairs = np.unique(np.concatenate(found), axis=0)
        self._entities = pairs[:, 1]
        self._starts = np.searchsorted(pairs[:, 0], np.append(self._queries, np.iinfo(np.int64).max))

    def pairs(self, triples: NDArray[np.int64]) -> Tensor:
        """A place in `triples` and an entity, for each right one: int64 (2, pairs)."""
        places = np.searchsorted(self._queries, self._query(triples))
        starts, counts = self._starts[places], self._starts[places + 1] - self._starts[places]
        rows = np.repeat(np.arange(len(triples)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return torch.from_numpy(np.stack([rows, self._entities[np.repeat(starts, counts) + within]]))

    def _query(self, triples: NDArray[np.integer]) -> NDArray[np.int64]:
        numbers: NDArray[np.int64] = (
            triples[:, self._given].astype(np.int64) * self._relations + triples[:, 1]
        )
        return numbers


def ranks(scores: Tensor, right: Tensor, filtered: Tensor) -> Tensor:
    """The rank of each row's right entity among those that are not filtered, from 1.

    Of entities with the same score, half stand before the right one: the mean over all orders that they could
    have, which PyKEEN calls the realistic rank. A model that scores everything alike gets the middle, not 1.

    Parameters
    ----------
    scores : Tensor
        float32 (n, entities), written to.
    right : Tensor
        int64 (n,).
    filtered : Tensor
        Pairs of a row and an entity that does not count, int64 (2, pairs); the right one counts nevertheless.

    Returns
    -------
    Tensor
        float64 (n,). NaN where a row's right entity has a score of NaN.
    """
    own = scores.gather(1, right[:, None])
    scores[filtered[0], filtered[1]] = -torch.inf
    scores.scatter_(1, right[:, None], own)
    if bool((own == -torch.inf).any()):
        # Then what was filtered seems equal.
        raise ArithmeticError("a right entity's score is -inf: training diverged")
    # Entities with a higher score less those with a lower one, in one pass and exact below 2^24 entities.
    higher = scores.sub_(own).nan_to_num_(nan=-1.0).sign_().sum(1).to(torch.float64)
    rank = (scores.shape[1] + higher + 1) / 2
    return torch.where(own[:, 0].isnan(), torch.nan, rank)


def summary(found: Tensor) -> dict[str, float]:
    """Mean reciprocal rank and Hits@1, 3, 10 of ranks, float64 (n,)."""
    hits = {f"hits@{most}": float((found <= most).double().mean()) for most in HITS}
    return {"mrr": float((1 / found).mean()), **hits}
