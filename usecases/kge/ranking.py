"""Filtered ranks: the rank of the correct entity among all entities that are not also correct."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adabench.usecases.common.batches import numbers_of_ranges

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
        rows, known = numbers_of_ranges(self._starts[places], self._starts[places + 1])
        return torch.from_numpy(np.stack([rows, self._entities[known]]))

    def _query(self, triples: NDArray[np.integer]) -> NDArray[np.int64]:
        numbers: NDArray[np.int64] = (
            triples[:, self._given].astype(np.int64) * self._relations + triples[:, 1]
        )
        return numbers


class FilteredRanks:
    """Ranks of triples' correct entities, from the scores of one block of entities after the other.

    Of entities with equal scores, half are ranked before the correct one. This is the mean over all possible
    orders, which PyKEEN calls the realistic rank. A model with equal scores for all entities gets the middle
    rank, not 1.

    Parameters
    ----------
    right : Tensor
        Correct entities, int64 (n,).
    filtered : Tensor
        Pairs of an index in `right` and an entity to filter, int64 (2, pairs). The correct entity is never
        filtered.
    """

    def __init__(self, right: Tensor, filtered: Tensor) -> None:
        others = filtered[:, filtered[1] != right[filtered[0]]]
        rows = torch.cat([torch.arange(len(right)), others[0]])
        self._entities, order = torch.cat([right, others[1]]).sort()
        self._rows, self._is_right = rows[order], order < len(right)
        self._added = 0
        self._higher = torch.zeros(len(right), dtype=torch.float64)
        self._no_number = torch.zeros(len(right), dtype=torch.bool)

    def add(self, scores: Tensor, own: Tensor) -> None:
        """Add the scores of the next entities.

        Parameters
        ----------
        scores : Tensor
            Scores, float32 (n, entities). They are overwritten.
        own : Tensor
            Scores of the correct entities, float32 (n,), which the same operation has computed.
        """
        if bool((own == -torch.inf).any()):
            # Filtered entities would seem equal to the correct one.
            raise ArithmeticError("a correct entity's score is -inf: training diverged")
        first, self._added = self._added, self._added + scores.shape[1]
        start, end = torch.searchsorted(self._entities, torch.tensor([first, self._added])).tolist()
        rows = self._rows[start:end]
        values = torch.where(self._is_right[start:end], own[rows], -torch.inf)
        scores[rows, self._entities[start:end] - first] = values
        # Number of entities with a higher score minus number with a lower score, in one pass and exact below
        # 2^24 entities.
        signs = scores.sub_(own[:, None]).nan_to_num_(nan=-1.0).sign_()
        self._higher += signs.sum(1)
        self._no_number |= own.isnan()

    def ranks(self) -> Tensor:
        """Return the ranks among the entities that are not filtered, float64 (n,), from 1.

        A rank is NaN if the score of the correct entity is NaN.
        """
        rank = (self._added + self._higher + 1) / 2
        return torch.where(self._no_number, torch.nan, rank)


def summary(found: Tensor) -> dict[str, float]:
    """Return the mean reciprocal rank and Hits@1, 3, 10 of ranks, float64 (n,)."""
    hits = {f"hits@{most}": float((found <= most).double().mean()) for most in HITS}
    return {"mrr": float((1 / found).mean()), **hits}
