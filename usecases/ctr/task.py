"""The use case `ctr`: Wide & Deep on Criteo, judged by AUC and log-loss."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adabench.usecases.ctr.data import load
from adabench.usecases.ctr.loader import Batch, OrderedBatches, ShuffledBatches, Split, batch_loader
from adabench.usecases.ctr.metrics import auc, logloss
from adabench.usecases.ctr.model import WideAndDeep
from adabench.usecases.protocol import DataError, Loaders, Params


class CtrParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `ctr`.

    Attributes
    ----------
    epochs, batch, dim, lr
        As for every use case; `dim` is the width of a deep embedding.
    optimizer : "adagrad" or "sgd"
        What updates all parameters.
    hidden : tuple of int
        Widths of the perceptron's hidden layers, at least one.
    wide : bool
        Whether the linear model is trained beside the perceptron; without it the model has one table.
    rows : int
        Samples to generate where no data are given.
    vocabulary : int or None
        Where no data are given: values of each categorical feature, Zipf-distributed with exponent 1.05, all
        with a row of their own. None generates the vocabularies and skews of Criteo.
    """

    epochs: int = 3
    lr: float = 0.002  # with 0.003 the generated data are overfitted from the third epoch on
    optimizer: Literal["adagrad", "sgd"] = "adagrad"
    hidden: tuple[int, ...] = (128, 64)
    wide: bool = True
    rows: int = 65_536
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        sizes = {"epochs": self.epochs, "batch": self.batch, "dim": self.dim, "rows": self.rows}
        if self.vocabulary is not None:
            sizes["vocabulary"] = self.vocabulary
        if not self.hidden:
            raise ValueError("hidden is empty: it must hold the width of at least one layer")
        sizes |= {f"hidden[{index}]": width for index, width in enumerate(self.hidden)}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}: it must be 1 or more")
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr is {self.lr}: it must be a positive number")
        if self.optimizer not in ("adagrad", "sgd"):
            raise ValueError(f"optimizer is {self.optimizer!r}: it must be 'adagrad' or 'sgd'")


class CtrUseCase:
    """Predicts whether an advertisement is clicked. See `adabench.usecases.ctr.data` for what `data` may be.

    The seed decides the initial weights and the order of the data, not the data themselves.
    """

    name: ClassVar[str] = "ctr"
    Params: ClassVar[type[Params]] = CtrParams
    metric: ClassVar[str] = "auc"
    maximize: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.005

    def __init__(self, params: CtrParams, data: Path | None, seed: int) -> None:
        self._params = params
        self._seed = seed
        self._data = load(data, params.rows, params.vocabulary)

    @property
    def params(self) -> CtrParams:
        return self._params

    @property
    def fingerprint(self) -> str:
        return self._data.fingerprint

    def model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(self._seed)
        params = self._params
        return WideAndDeep(self._data.rows, params.dim, params.hidden, params.wide, generator)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        # Torch's default, but chosen: without a choice it warns when a sparse gradient reaches the optimizer.
        torch.sparse.check_sparse_tensor_invariants.disable()
        if self._params.optimizer == "adagrad":
            return torch.optim.Adagrad(model.parameters(), lr=self._params.lr)
        return torch.optim.SGD(model.parameters(), lr=self._params.lr)

    def loaders(self, rank: int, world: int) -> Loaders:
        if not 0 <= rank < world:
            raise ValueError(f"worker {rank} of {world}: the worker's number must be from 0 to {world - 1}")
        data, batch = self._data, self._params.batch
        share = len(data.train) // world
        if share < batch:
            raise DataError(
                f"the training split has {len(data.train)} rows: {world} workers with batches of {batch} "
                f"need at least {world * batch}"
            )
        shuffled = ShuffledBatches(len(data.train), batch, self._seed, rank, world)
        return Loaders(
            batch_loader(data.train, shuffled), self._in_order(data.valid), self._in_order(data.test)
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.label)

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        model.eval()
        try:
            with torch.no_grad():
                results = [(batch.label, model(batch.dense, batch.ids)) for batch in loader]
        finally:
            model.train()
        columns = zip(*results, strict=True)
        labels, logits = (torch.cat(column).to(torch.float64).numpy() for column in columns)
        return {"auc": auc(labels, logits), "logloss": logloss(labels, logits)}

    def keys(self, batch: Batch) -> dict[str, Tensor]:
        rows = batch.ids.flatten()
        return dict.fromkeys(self._tables, rows)

    def feature_rows(self) -> dict[str, Tensor]:
        return dict.fromkeys(self._tables, self._data.first_rows)

    def samples(self, batch: Batch) -> int:
        return len(batch.label)

    @property
    def _tables(self) -> tuple[str, ...]:
        return ("wide.weight", "deep.weight") if self._params.wide else ("deep.weight",)

    def _in_order(self, split: Split) -> Iterable[Batch]:
        return batch_loader(split, OrderedBatches(len(split), self._params.batch))
