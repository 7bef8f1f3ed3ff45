"""The use case `mf`: matrix factorization predicts ratings, with root mean square error as metric."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from adabench.usecases.common.batches import (
    DealsBatches,
    Draw,
    OrderedBatches,
    ShuffledBatches,
    batch_loader,
    evaluating,
)
from adabench.usecases.common.hashing import KEYS, Keys
from adabench.usecases.common.optimizers import OPTIMIZERS, OptimizerName
from adabench.usecases.common.placement import PLACEMENTS, Placement, SamplePlacement
from adabench.usecases.common.validation import (
    require_choice,
    require_numbered,
    require_positive,
    require_sizes,
    require_weight,
)
from adabench.usecases.interface import EVALUATION_BATCH, DataError, Loaders, Params
from adabench.usecases.mf.data import FOLDS, Ratings, load, split
from adabench.usecases.mf.model import Estimates, MatrixFactorization
from adabench.usecases.mf.read import Block


class FactorParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common parameters of `mf` and `mf-implicit`.

    Attributes
    ----------
    epochs : int
        Number of passes over the training split.
    batch : int
        Number of ratings per step and worker.
    dim : int
        Number of factors of a user or an item, in addition to its bias.
    lr : float
        Learning rate of the optimizer.
    optimizer : "adagrad" or "sgd"
        Optimizer of all parameters.
    regularization : float
        Weight of the squares of the rows that a rating reads.
    ratings : int
        Number of ratings to generate if no data are given.
    fold : int
        Index of the fifth of the ratings that is the test split, from 0 to 4.
    placement : "random", "greedy", "label" or "cluster"
        Assignment of ratings to workers: in turn, by the rows that they read, with low ratings separate from
        high ones, or by their users.
    """

    optimizer: OptimizerName = "adagrad"
    regularization: float = 0.0
    ratings: int = 200_000
    fold: int = 0
    placement: Placement = "cluster"

    def __post_init__(self) -> None:
        require_sizes(self, ("epochs", "batch", "dim", "ratings"))
        require_positive(self, ("lr",))
        require_weight(self, ("regularization",))
        require_choice(self, {"optimizer": OPTIMIZERS, "placement": PLACEMENTS})
        if not 0 <= self.fold < FOLDS:
            raise ValueError(f"fold is {self.fold}: it must be from 0 to {FOLDS - 1}")


class MfParams(FactorParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `mf`, in addition to `FactorParams`.

    Attributes
    ----------
    keys : "dense" or "hash"
        Keys of the tables: numbers of users and items in the order of the file, or their ids as in the data.
    capacity : int
        Maximum number of rows of each table with ``keys=hash``.
    """

    epochs: int = 5
    batch: int = 256
    dim: int = 16
    lr: float = 0.1
    regularization: float = 0.1
    keys: Keys = "dense"
    capacity: int = 1 << 18

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sizes(self, ("capacity",))
        require_choice(self, {"keys": KEYS})
        require_numbered(self.keys, self.placement, ("greedy",))


class Batch(NamedTuple):
    """A batch of ratings: users int64 (batch,), items int64 (batch,), ratings float32 (batch,)."""

    users: Tensor
    items: Tensor
    ratings: Tensor


class RatingRows(Dataset[Batch]):
    """Ratings by their indices. Reads only the requested parts of the files from which they are mapped."""

    def __init__(self, block: Block) -> None:
        self._columns = [torch.from_numpy(column) for column in block]

    def __getitem__(self, draw: Draw) -> Batch:
        users, items, ratings = (column.index_select(0, draw.rows) for column in self._columns)
        return Batch(users.long(), items.long(), ratings)


class MfUseCase(DealsBatches[MfParams]):
    """Predicts a user's rating of an item. `adabench.usecases.mf.read` describes the formats of `data`.

    The seed determines the initial weights and the order of the data, but not the data or their splits.
    """

    name: ClassVar[str] = "mf"
    Params: ClassVar[type[Params]] = MfParams
    metric: ClassVar[str] = "rmse"
    maximize: ClassVar[bool] = False
    tolerance: ClassVar[float] = 0.005

    def __init__(self, params: MfParams, data: Path | None, seed: int) -> None:
        super().__init__(params, seed)
        self._hashed = params.keys == "hash"
        self._ratings = load(data, params.ratings, hashed=self._hashed)
        self._fingerprint = self._ratings.fingerprint
        block = self._ratings.block
        self._split = split(len(block.ratings), params.fold)
        for name, rows in self._split._asdict().items():
            if len(rows) == 0:
                what = "the generated data" if data is None else str(data)
                raise DataError(
                    f"{what} have {len(block.ratings)} ratings, none of which is in the {name} split"
                )
        known = block.ratings[self._split.train]
        self._mean = float(known.mean(dtype=np.float64))
        self._range = float(known.min()), float(known.max())
        self._placement = placement_of(self._ratings, self._split.train, params)

    def model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(self._seed)
        params, ratings = self._params, self._ratings
        users, items = (params.capacity,) * 2 if self._hashed else (ratings.users, ratings.items)
        return MatrixFactorization(users, items, params.dim, self._mean, generator, hashed=self._hashed)

    def loaders(self, rank: int, world: int) -> Loaders:
        sizes = self._sizes(rank, world)
        rows, batch = RatingRows(self._ratings.block), self._params.batch
        share = self._split.train[self._placement.share(rank, sizes)]
        train = ShuffledBatches(share, sizes[rank], self._seed, rank)
        valid, test = (OrderedBatches(part, max(batch, EVALUATION_BATCH)) for part in self._split[1:])
        return Loaders(*(batch_loader(rows, batches) for batches in (train, valid, test)))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean square error, plus the regularization of the rows that a rating reads."""
        estimates: Estimates = model(batch.users, batch.items)
        penalty = estimates.norm / len(batch.users)
        return mse_loss(estimates.scores, batch.ratings) + self._params.regularization * penalty

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Return the root mean square error of predictions, which are limited to the range of the ratings."""
        count, squares = 0, 0.0
        with evaluating(model):
            for batch in loader:
                scores = model(batch.users, batch.items).scores.clamp(*self._range)
                squares += float((scores - batch.ratings).square().sum(dtype=torch.float64))
                count += len(batch.ratings)
        if count == 0:
            raise ValueError("the loader to evaluate over is empty: it must hold at least one rating")
        return {"rmse": (squares / count) ** 0.5}

    def keys(self, batch: Batch) -> dict[str, Tensor]:
        return {"users.weight": batch.users, "items.weight": batch.items}

    def hashed_tables(self) -> frozenset[str]:
        return frozenset(("users.weight", "items.weight") if self._hashed else ())

    def samples(self, batch: Batch) -> int:
        return len(batch.ratings)

    def home_rows(self, rank: int, world: int) -> dict[str, Tensor]:
        """Return the rows that worker `rank`'s ratings read most.

        There are none if ratings are assigned at random, or if keys are hashed.
        """
        if self._hashed:
            return {}
        return self._placement.home_rows(rank, self._sizes(rank, world))


def placement_of(ratings: Ratings, numbers: NDArray[np.int64], params: FactorParams) -> SamplePlacement:
    """Return the placement that assigns the ratings with these indices to workers."""
    block, first_item = ratings.block, ratings.users
    return SamplePlacement(
        params.placement,
        samples=len(numbers),
        tables={"users.weight": ratings.users, "items.weight": ratings.items},
        reads=lambda some: np.stack(
            [block.users[numbers[some]], block.items[numbers[some]] + first_item], axis=1, dtype=np.int64
        ),
        orders={"label": lambda: block.ratings[numbers], "cluster": lambda: block.users[numbers]},
        what="ratings",
    )
