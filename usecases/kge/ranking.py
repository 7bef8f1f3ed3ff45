"""Filtered ranks: the rank of the correct entity among all entities that are not also correct."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Answers", "ranks", "summary"]

HITS = (1, 3, 10)
_BLOCK = 1 << 20  # number of triples that are searched together


class Answers:
    """All known correct entities for queries. A query is a relation with a head or with a tail.

    Parameters
    ----------
    asked : array
        Triples (n, 3) with the queries that will be used.
    known : iterable of array
        All known triples, (n, 3) each. Triples without such a query are not kept.
    given, wanted : int
        Columns of the query's entity and of the wanted entity: 0 or 2.
    relations : int
        Number of relations.
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
        """Return an index in `triples` and an entity for each correct entity: int64 (2, pairs)."""
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
    """Return the rank of each row's correct entity among the entities that are not filtered, from 1.

    Of entities with equal scores, half are ranked before the correct one. This is the mean over all possible
    orders, which PyKEEN calls the realistic rank. A model with equal scores for all entities gets the middle
    rank, not 1.

    Parameters
    ----------
    scores : Tensor
        Scores, float32 (n, entities). They are overwritten.
    right : Tensor
        Correct entities, int64 (n,).
    filtered : Tensor
        Pairs of a row and an entity to filter, int64 (2, pairs). The correct entity is never filtered.

    Returns
    -------
    Tensor
        Ranks, float64 (n,). NaN if the score of a row's correct entity is NaN.
    """
    own = scores.gather(1, right[:, None])
    scores[filtered[0], filtered[1]] = -torch.inf
    scores.scatter_(1, right[:, None], own)
    if bool((own == -torch.inf).any()):
        # Filtered entities would then seem equal to the correct one.
        raise ArithmeticError("a correct entity's score is -inf: training diverged")
    # Number of entities with a higher score minus number with a lower score, in one pass and exact below 2^24
    # entities.
    higher = scores.sub_(own).nan_to_num_(nan=-1.0).sign_().sum(1).to(torch.float64)
    rank = (scores.shape[1] + higher + 1) / 2
    return torch.where(own[:, 0].isnan(), torch.nan, rank)


def summary(found: Tensor) -> dict[str, float]:
    """Return the mean reciprocal rank and Hits@1, 3, 10 of ranks, float64 (n,)."""
    hits = {f"hits@{most}": float((found <= most).double().mean()) for most in HITS}
    return {"mrr": float((1 / found).mean()), **hits}
