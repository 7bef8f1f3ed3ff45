"""The use case `mf-implicit`: learns from liked items what else a user likes, with NDCG@10 as metric."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import Dataset

from adabench.usecases.common.batches import (
    DealsBatches,
    Draw,
    OrderedBatches,
    ShuffledBatches,
    batch_loader,
    evaluating,
    generator_of,
)
from adabench.usecases.common.negatives import Uniform
from adabench.usecases.common.validation import require_sizes
from adabench.usecases.interface import DataError, Draws, Loaders, Params
from adabench.usecases.mf.data import load, split
from adabench.usecases.mf.model import Estimates, MatrixFactorization
from adabench.usecases.mf.ranking import ItemsOf, ndcg
from adabench.usecases.mf.read import Block
from adabench.usecases.mf.task import FactorParams, placement_of

CUTOFF = 10
USERS_AT_ONCE = 256
"""Number of users that evaluation processes together. Each is scored against all items."""


class MfImplicitParams(FactorParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `mf-implicit`, in addition to `FactorParams`.

    Attributes
    ----------
    threshold : float
        Minimum rating of a liked item. Lower ratings are not used.
    negatives : int
        Number of items drawn at random for each liked item.
    """

    epochs: int = 6
    batch: int = 256
    dim: int = 16
    lr: float = 0.1
    regularization: float = 0.01
    threshold: float = 4.0
    negatives: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes(self, ("negatives",))
        if not abs(self.threshold) < float("inf"):
            raise ValueError(f"threshold is {self.threshold}: it must be a number")


class Batch(NamedTuple):
    """Users with liked and drawn items: users int64 (batch,), items int64 (batch, 1 + k).

    A row of items begins with the liked item.
    """

    users: Tensor
    items: Tensor


class RankedUsers(NamedTuple):
    """Users to rank all items for.

    Attributes
    ----------
    users : Tensor
        Users, int64 (n,).
    known, wanted : Tensor
        Pairs of an index in `users` and an item, int64 (2, pairs): items in the training data, and held-out
        items.
    """

    users: Tensor
    known: Tensor
    wanted: Tensor


class MfImplicitUseCase(DealsBatches[MfImplicitParams]):
    """Learns to rank liked items above random items (BPR, Rendle et al., UAI 2009).

    Several ratings of an item by one user count once. The seed determines the initial weights, the order of
    the data and the drawn items, but not the data or their splits.
    """

    name: ClassVar[str] = "mf-implicit"
    Params: ClassVar[type[Params]] = MfImplicitParams
    metric: ClassVar[str] = "ndcg@10"
    maximize: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.005

    def __init__(self, params: MfImplicitParams, data: Path | None, seed: int) -> None:
        super().__init__(params, seed)
        self._ratings = load(data, params.ratings)
        self._fingerprint = self._ratings.fingerprint
        block = self._ratings.block
        read = np.flatnonzero(block.ratings >= params.threshold)
        liked = first_of_each_pair(block, read)
        self.data_facts = {"liked_ratings": len(read), "liked_pairs": len(liked)}
        what = "the generated data" if data is None else str(data)
        if len(liked) == 0:
            raise DataError(
                f"{what} have no rating above {block.ratings.max():g}: threshold must be lower than "
                f"{params.threshold:g}"
            )
        parts = [liked[rows] for rows in split(len(liked), params.fold)]
        for name, rows in zip(("train", "valid", "test"), parts, strict=True):
            if len(rows) == 0:
                raise DataError(
                    f"{what} have {len(liked)} ratings of {params.threshold:g} or more, none of them in the "
                    f"{name} split: more are needed"
                )
        self._train = parts[0]
        self._placement = placement_of(self._ratings, self._train, params)
        self._items = [ItemsOf(block.users[rows], block.items[rows], self._ratings.users) for rows in parts]

    def model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(self._seed)
        ratings = self._ratings
        return MatrixFactorization(ratings.users, ratings.items, self._params.dim, 0.0, generator)

    def loaders(self, rank: int, world: int) -> Loaders:
        sizes = self._sizes(rank, world)
        block, params = self._ratings.block, self._params
        own = self._train[self._placement.share(rank, sizes)]
        share = ShuffledBatches(own, sizes[rank], self._seed, rank)
        liked = LikedRows(block.users, block.items, self._ratings.items, params.negatives)
        train, valid, test = self._items
        ranked = [HeldOut([train], valid), HeldOut([train, valid], test)]
        return Loaders(batch_loader(liked, share), *(self._in_order(users) for users in ranked))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean of -log sigmoid(liked - drawn), plus the regularization of the read rows."""
        estimates: Estimates = model(batch.users, batch.items)
        liked, drawn = estimates.scores[:, :1], estimates.scores[:, 1:]
        penalty = estimates.norm / len(batch.users)
        return softplus(drawn - liked).mean() + self._params.regularization * penalty

    def evaluate(self, model: nn.Module, loader: Iterable[RankedUsers]) -> dict[str, float]:
        """Return the mean of the users' NDCG@10 over all items except the user's training items."""
        items = torch.arange(self._ratings.items)
        gains: list[Tensor] = []
        with evaluating(model):
            for batch in loader:
                scores = model(batch.users, items, every=True).scores
                scores[batch.known[0], batch.known[1]] = -torch.inf
                gains.append(ndcg(scores, batch.wanted, CUTOFF))
        if not gains:
            raise ValueError("the loader to evaluate over is empty: it must hold at least one user")
        return {self.metric: float(torch.cat(gains).mean())}

    def keys(self, batch: Batch) -> dict[str, Tensor]:
        return {"users.weight": batch.users, "items.weight": batch.items.flatten()}

    def samples(self, batch: Batch) -> int:
        return len(batch.users)

    def draws(self, rank: int = 0) -> Draws:
        batch = self._batches[rank] if self._batches else self._params.batch
        return Draws("items.weight", batch * self._params.negatives)

    def with_drawn(self, batch: Batch, rows: Tensor) -> Batch:
        drawn = rows.view(len(batch.users), len(rows) // len(batch.users))
        return batch._replace(items=torch.cat([batch.items[:, :1], drawn], dim=1))

    def home_rows(self, rank: int, world: int) -> dict[str, Tensor]:
        """Return the rows that worker `rank`'s ratings read most; none if they are assigned at random."""
        return self._placement.home_rows(rank, self._sizes(rank, world))

    def _in_order(self, users: HeldOut) -> Iterable[RankedUsers]:
        return batch_loader(users, OrderedBatches(users.numbers, USERS_AT_ONCE))


def first_of_each_pair(block: Block, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return indices of ratings without repeated pairs of user and item.

    A pair in two splits would be both wanted and known, and could not be ranked.
    """
    pairs = block.users[numbers].astype(np.int64) << 32 | block.items[numbers]
    kept: NDArray[np.int64] = numbers[np.sort(np.unique(pairs, return_index=True)[1])]
    return kept


class LikedRows(Dataset[Batch]):
    """Ratings by their indices, with uniformly drawn items for each."""

    def __init__(
        self,
        users: NDArray[np.signedinteger[Any]],
        items: NDArray[np.signedinteger[Any]],
        count: int,
        negatives: int,
    ) -> None:
        self._users, self._items = torch.from_numpy(users), torch.from_numpy(items)
        self._drawn, self._negatives = Uniform(count), negatives

    def __getitem__(self, draw: Draw) -> Batch:
        users, liked = (column.index_select(0, draw.rows).long() for column in (self._users, self._items))
        shape = (len(users), self._negatives)
        drawn = self._drawn(shape, generator_of(draw))
        return Batch(users, torch.cat([liked[:, None], drawn], dim=1))


class HeldOut(Dataset[RankedUsers]):
    """Users with held-out liked items; `numbers` has these users in ascending order."""

    def __init__(self, known: list[ItemsOf], wanted: ItemsOf) -> None:
        self._known, self._wanted = known, wanted
        self.numbers = wanted.users()

    def __getitem__(self, draw: Draw) -> RankedUsers:
        users = draw.rows.numpy()
        known = torch.cat([part.pairs(users) for part in self._known], dim=1)
        return RankedUsers(draw.rows, known, self._wanted.pairs(users))
