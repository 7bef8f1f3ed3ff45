"""What a use case is: a training task in plain PyTorch that knows no backend and no parameter server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor, nn

EVALUATION_BATCH = 1024
"""Samples of a batch of the validation and test splits, or more if training's batches are larger.

It changes no result, and with small ones evaluation takes a good part of a run.
"""


class Loaders(NamedTuple):
    """The data of one worker.

    Attributes
    ----------
    train : iterable
        Batches of this worker's share of the training split.
    valid, test : iterable
        Batches of the whole validation and test splits.
    """

    train: Iterable[Any]
    valid: Iterable[Any]
    test: Iterable[Any]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters that every use case has; a use case derives its own class with its own defaults.

    Attributes
    ----------
    epochs : int
        Passes over the training split.
    batch : int
        Samples per step and worker.
    dim : int
        Width of an embedding.
    lr : float
        Learning rate.
    """

    epochs: int = 3
    batch: int = 128
    dim: int = 16
    lr: float = 0.01


_Params = Params  # inside UseCase the name means its attribute


class UseCase(Protocol):
    """One training task.

    A class that fulfils this protocol is constructed as ``UseCase(params, data, seed)``; the constructor
    reads or generates the data and raises `DataError` when that is impossible.

    Parameters
    ----------
    params : Params
        Of this class's own `Params`.
    data : Path or None
        A file or folder; None for generated data.
    seed : int
        Of weights, of the order of the data, and of generated data.

    Attributes
    ----------
    name : str
        What the command line calls it.
    Params : type[Params]
        Its parameters with their defaults.
    metric : str
        The metric that validation chooses the best epoch by, one of the keys of `evaluate`'s result.
    maximize : bool
        Whether more of `metric` is better.
    tolerance : float
        Times are compared only where `metric` does not surely differ by more than this.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Params]]
    metric: ClassVar[str]
    maximize: ClassVar[bool]
    tolerance: ClassVar[float]

    def __init__(self, params: Any, data: Path | None, seed: int) -> None: ...

    @property
    def params(self) -> _Params:
        """What it was constructed with."""
        ...

    @property
    def fingerprint(self) -> str:
        """``sha256:…`` of the data, equal if and only if the data are."""
        ...

    def model(self) -> nn.Module:
        """A new model; equal seeds give equal initial weights on every worker."""
        ...

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer that plain PyTorch would train `model` with."""
        ...

    def loaders(self, rank: int, world: int) -> Loaders:
        """Loaders of worker `rank` of `world` workers; the training shares are disjoint and equally long."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The training loss of one batch.

        Parameters
        ----------
        model : nn.Module
            What `model` gave, as the backend wrapped it.
        batch : object
            One that a loader gave.

        Returns
        -------
        Tensor
            A float32 scalar to call ``backward()`` on.
        """
        ...

    def evaluate(self, model: nn.Module, loader: Iterable[Any]) -> dict[str, float]:
        """Quality metrics; leaves the model in training mode.

        Parameters
        ----------
        model : nn.Module
            What `model` gave, as the backend wrapped it.
        loader : iterable
            Of the validation or the test split.
        """
        ...

    def keys(self, batch: Any) -> dict[str, Tensor]:
        """By hand: the rows that `loss` reads.

        Parameters
        ----------
        batch : object
            One that the training loader gave.

        Returns
        -------
        dict of str to Tensor
            Qualified parameter name -> int64 row ids, of any shape; they may repeat.
        """
        ...

    def samples(self, batch: Any) -> int:
        """How many training samples `batch` holds."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A use case that knows before training which worker will read which rows most."""

    def home_rows(self, rank: int, world: int) -> dict[str, Tensor]:
        """Rows for worker `rank` of `world` to start with: qualified parameter name -> int64 row ids.

        Disjoint among the workers. A parameter server may begin with these rows on the worker's node.
        """
        ...


@runtime_checkable
class Featured(Protocol):
    """A use case whose tables hold the rows of several features, one feature after the other.

    Where ids are looked up, their last dimension counts the features. Systems that give each feature a table
    of its own need to know where in the common one its rows begin.
    """

    def feature_rows(self) -> dict[str, Tensor]:
        """Qualified parameter name -> first row of each feature, int64, ascending from 0."""
        ...


@runtime_checkable
class Dealt(Protocol):
    """A use case that can deal workers different numbers of samples, for instance as their nodes are fast."""

    def with_batches(self, batches: Sequence[int]) -> UseCase:
        """The same task, whose workers take as many steps as before, with more or fewer samples in each.

        Parameters
        ----------
        batches : sequence of int
            Samples of a training step of each worker, at least 1: their shares of the training split are in
            proportion, and all have equally many steps.
        """
        ...


class Draws(NamedTuple):
    """What each batch brings that was drawn.

    Attributes
    ----------
    table : str
        Qualified parameter name of the table that rows are drawn from, all with the same probability.
    number : int
        How many rows a batch of the worker has.
    """

    table: str
    number: int


@runtime_checkable
class Sampled(Protocol):
    """A use case whose training batches bring rows that were drawn for them, such as negatives.

    The training loader draws them by itself. A parameter server may draw others in their place, for instance
    such as are on the worker's node.
    """

    def draws(self, rank: int = 0) -> Draws:
        """What the training loader of worker `rank` draws for each of its batches."""
        ...

    def with_drawn(self, batch: Any, rows: Tensor) -> Any:
        """The batch, with other rows in the place of those that were drawn, or with none.

        Parameters
        ----------
        batch : object
            One that the training loader gave.
        rows : Tensor
            int64: as many as `draws` says, or empty; then only `keys` has to understand the batch.
        """
        ...


@runtime_checkable
class Initialized(Protocol):
    """A use case whose model can have other initial weights than those of its seed."""

    def initialized(self, seed: int) -> nn.Module:
        """A new model with the initial weights of `seed`; those of `model` with the use case's own seed."""
        ...


class DataError(ValueError):
    """Data that cannot be used: one sentence that names the file or value and says what would be right."""
