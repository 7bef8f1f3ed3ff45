"""The use case `ctr`: Wide & Deep on Criteo, with AUC and log-loss as quality metrics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adabench.usecases.common.batches import (
    DealsBatches,
    OrderedBatches,
    ShuffledBatches,
    batch_loader,
    evaluating,
)
from adabench.usecases.common.hashing import KEYS, Keys
from adabench.usecases.common.optimizers import OPTIMIZERS, OptimizerName
from adabench.usecases.common.placement import PLACEMENTS, Placement, SamplePlacement
from adabench.usecases.common.rank_statistics import auc
from adabench.usecases.common.validation import (
    require_choice,
    require_numbered,
    require_positive,
    require_sizes,
)
from adabench.usecases.ctr.data import load
from adabench.usecases.ctr.loader import Batch, Split
from adabench.usecases.ctr.metrics import logloss
from adabench.usecases.ctr.model import WideAndDeep
from adabench.usecases.interface import EVALUATION_BATCH, Loaders, Params


class CtrParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `ctr`.

    Attributes
    ----------
    epochs : int
        Number of passes over the training split.
    batch : int
        Number of samples per step and worker.
    dim : int
        Number of floats of a feature's embedding.
    lr : float
        Learning rate of the optimizer.
    optimizer : "adagrad" or "sgd"
        Optimizer of all parameters.
    hidden : tuple of int
        Widths of the perceptron's hidden layers, at least one.
    wide : bool
        Whether the linear model is trained in addition to the perceptron. Without it, or with
        ``keys=hash``, the model has one table.
    rows : int
        Number of samples to generate if no data are given.
    vocabulary : int or None
        Number of values of each generated categorical feature, Zipf-distributed with exponent 1.05. Each
        value has a row. With None, the generated features have the vocabularies and skews of Criteo.
    placement : "random", "greedy", "label" or "cluster"
        Assignment of samples to workers: in turn, by the rows that they read, with clicks separate from other
        samples, or by the values of the feature with the most values.
    keys : "dense" or "hash"
        Keys of the tables: numbers of the ids of all splits, or the ids as they are in the data.
    capacity : int
        Maximum number of rows of the table with ``keys=hash``.
    """

    epochs: int = 3
    lr: float = 0.002  # 0.003 overfits generated data from the third epoch on
    optimizer: OptimizerName = "adagrad"
    hidden: tuple[int, ...] = (128, 64)
    wide: bool = True
    rows: int = 65_536
    vocabulary: int | None = None
    placement: Placement = "random"
    keys: Keys = "dense"
    capacity: int = 1 << 20

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("hidden is empty: it must hold the width of at least one layer")
        optional = ("vocabulary",) if self.vocabulary is not None else ()
        require_sizes(self, ("epochs", "batch", "dim", "rows", "hidden", "capacity", *optional))
        require_positive(self, ("lr",))
        require_choice(self, {"optimizer": OPTIMIZERS, "placement": PLACEMENTS, "keys": KEYS})
        require_numbered(self.keys, self.placement, ("greedy", "cluster"))


class CtrUseCase(DealsBatches[CtrParams]):
    """Predicts whether an advertisement is clicked. `adabench.usecases.ctr.data` describes `data`.

    The seed determines the initial weights and the order of the data, but not the data.
    """

    name: ClassVar[str] = "ctr"
    Params: ClassVar[type[Params]] = CtrParams
    metric: ClassVar[str] = "auc"
    maximize: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.005

    def __init__(self, params: CtrParams, data: Path | None, seed: int) -> None:
        super().__init__(params, seed)
        self._hashed = params.keys == "hash"
        self._data = load(data, params.rows, params.vocabulary, hashed=self._hashed)
        self._fingerprint = self._data.fingerprint
        train = self._data.train.samples
        self._placement = SamplePlacement(
            params.placement,
            samples=len(train.label),
            tables={"deep.weight": self._data.rows},
            reads=lambda numbers: train.ids[torch.from_numpy(numbers)].numpy(),
            orders={"label": train.label.numpy, "cluster": self._largest_feature},
            what="rows",
        )

    def model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(self._seed)
        params = self._params
        rows = params.capacity if self._hashed else self._data.rows
        return WideAndDeep(rows, params.dim, params.hidden, params.wide, generator, hashed=self._hashed)

    def loaders(self, rank: int, world: int) -> Loaders:
        sizes = self._sizes(rank, world)
        data = self._data
        shuffled = ShuffledBatches(self._placement.share(rank, sizes), sizes[rank], self._seed, rank)
        return Loaders(
            batch_loader(data.train, shuffled), self._in_order(data.valid), self._in_order(data.test)
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.label)

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        with evaluating(model):
            results = [(batch.label, model(batch.dense, batch.ids)) for batch in loader]
        columns = zip(*results, strict=True)
        labels, logits = (torch.cat(column).to(torch.float64).numpy() for column in columns)
        return {"auc": auc(labels, logits), "logloss": logloss(labels, logits)}

    def keys(self, batch: Batch) -> dict[str, Tensor]:
        rows = batch.ids.flatten()
        return dict.fromkeys(self._tables, rows)

    def hashed_tables(self) -> frozenset[str]:
        return frozenset(self._tables if self._hashed else ())

    def feature_rows(self) -> dict[str, Tensor]:
        return dict.fromkeys(self._tables, self._data.first_rows)

    def samples(self, batch: Batch) -> int:
        return len(batch.label)

    def home_rows(self, rank: int, world: int) -> dict[str, Tensor]:
        """Return the rows that worker `rank` reads most often; none if samples are assigned at random."""
        homes = self._placement.home_rows(rank, self._sizes(rank, world))
        return dict.fromkeys(self._tables, homes["deep.weight"]) if homes else {}

    @property
    def _tables(self) -> tuple[str, ...]:
        has_wide = self._params.wide and not self._hashed
        return ("wide.weight", "deep.weight") if has_wide else ("deep.weight",)

    def _largest_feature(self) -> NDArray[np.integer[Any]]:
        """Return the values of the feature with the most values, (samples,)."""
        sizes = np.diff(self._data.first_rows.numpy(), append=self._data.rows)
        ids: NDArray[np.integer[Any]] = self._data.train.samples.ids[:, int(sizes.argmax())].numpy()
        return ids

    def _in_order(self, split: Split) -> Iterable[Batch]:
        rows, batch = np.arange(len(split)), max(self._params.batch, EVALUATION_BATCH)
        return batch_loader(split, OrderedBatches(rows, batch))
