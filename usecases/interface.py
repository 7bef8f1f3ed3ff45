"""The interface of use cases: training tasks in plain PyTorch, independent of backends and servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor, nn

EVALUATION_BATCH = 1024
"""Samples of a batch of the validation and test splits, or more if training's batches are larger.

It does not change results. Smaller batches would make evaluation a large part of a run. """


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
    """Common parameters of all use cases. A use case derives its own class with its own defaults.

    Attributes
    ----------
    epochs : int
        Number of passes over the training split.
    batch : int
        Number of samples per step and worker.
    dim : int
        Width of an embedding.
    lr : float
        Learning rate.
    """

    epochs: int = 3
    batch: int = 128
    dim: int = 16
    lr: float = 0.01


_Params = Params  # inside UseCase, the name Params is an attribute


class UseCase(Protocol):
    """A training task.

    A class that implements this protocol is constructed as ``UseCase(params, data, seed)``. The constructor
    reads or generates the data, and raises `DataError` if this is impossible.

    Parameters
    ----------
    params : Params
        Parameters of the class's own type `Params`.
    data : Path or None
        File or folder with the data; None for generated data.
    seed : int
        Seed for the weights, the order of the data, and generated data.

    Attributes
    ----------
    name : str
        Name of the use case on the command line.
    Params : type[Params]
        Type of its parameters, with their defaults.
    metric : str
        Metric that selects the best epoch by validation, one of the keys of `evaluate`'s result.
    maximize : bool
        Whether larger values of `metric` are better.
    tolerance : float
        Maximum difference of `metric` between runs whose times are compared.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Params]]
    metric: ClassVar[str]
    maximize: ClassVar[bool]
    tolerance: ClassVar[float]

    def __init__(self, params: Any, data: Path | None, seed: int) -> None: ...

    @property
    def params(self) -> _Params:
        """Parameters of this use case."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest ``sha256:…`` of the data, equal only for equal data."""
        ...

    def model(self) -> nn.Module:
        """Return a new model. Equal seeds give equal initial weights on every worker."""
        ...

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer that plain PyTorch would use for `model`."""
        ...

    def loaders(self, rank: int, world: int) -> Loaders:
        """Return loaders of worker `rank` of `world`. The training shares are disjoint and equally long."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the training loss of one batch.

        Parameters
        ----------
        model : nn.Module
            Model from `model`, as wrapped by the backend.
        batch : object
            Batch from a loader.

        Returns
        -------
        Tensor
            Float32 scalar to call ``backward()`` on.
        """
        ...

    def evaluate(self, model: nn.Module, loader: Iterable[Any]) -> dict[str, float]:
        """Return quality metrics. Leaves the model in training mode.

        Parameters
        ----------
        model : nn.Module
            Model from `model`, as wrapped by the backend.
        loader : iterable
            Loader of the validation or the test split.
        """
        ...

    def keys(self, batch: Any) -> dict[str, Tensor]:
        """Return the rows that `loss` reads, for strategies with hand-written intent; see also `Hashed`.

        Parameters
        ----------
        batch : object
            Batch from the training loader.

        Returns
        -------
        dict of str to Tensor
            Int64 row ids of any shape by qualified parameter name. They may repeat.
        """
        ...

    def samples(self, batch: Any) -> int:
        """Return the number of training samples in `batch`."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A use case that can predict before training which worker reads which rows most often."""

    def home_rows(self, rank: int, world: int) -> dict[str, Tensor]:
        """Return initial rows of worker `rank` of `world`: int64 row ids by qualified parameter name.

        The rows of different workers are disjoint. A parameter server may place them on the worker's node at
        the start.
        """
        ...


@runtime_checkable
class Hashed(Protocol):
    """A use case that can have tables for ids of any value, whose rows are created at their first use."""

    def hashed_tables(self) -> frozenset[str]:
        """Return the qualified names of the tables for which `keys` returns ids instead of row numbers."""
        ...


def hashed_tables(usecase: UseCase) -> frozenset[str]:
    """Return the qualified names of the tables for which `keys` returns ids instead of row numbers.

    Parameters
    ----------
    usecase : UseCase
        Any use case. Without `Hashed`, it has no such table.
    """
    return usecase.hashed_tables() if isinstance(usecase, Hashed) else frozenset()


@runtime_checkable
class Featured(Protocol):
    """A use case with tables that contain the rows of several features, one feature after the other.

    In lookups, the last dimension of the ids is the feature. Systems with a separate table for each feature
    need the first row of each feature in the common table.
    """

    def feature_rows(self) -> dict[str, Tensor]:
        """Return the first row of each feature, int64 and ascending from 0, by qualified parameter name."""
        ...


@runtime_checkable
class Dealt(Protocol):
    """A use case that can give workers different numbers of samples, for instance by their nodes' speed."""

    def with_batches(self, batches: Sequence[int]) -> UseCase:
        """Return an equal task with the same number of steps, but other numbers of samples in each step.

        Parameters
        ----------
        batches : sequence of int
            Number of samples in a training step of each worker, at least 1. The shares of the training split
            are in proportion to these numbers, and all workers have equal numbers of steps.
        """
        ...


@runtime_checkable
class Described(Protocol):
    """A use case with numbers that describe its data. The record of each run contains them."""

    @property
    def data_facts(self) -> dict[str, int]:
        """Numbers of samples by name, such as ``test_triples``."""
        ...


@runtime_checkable
class EvaluatesSamples(Protocol):
    """A use case that evaluates samples of its splits during training, because whole splits take too long.

    The loaders `valid` and `test` contain the samples. After the last epoch, the model of the best epoch is
    evaluated on the whole test split.
    """

    def copy_of(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model for `evaluate`. It is in the memory of this process, and never changes.

        Parameters
        ----------
        model : nn.Module
            Model from `model`, as wrapped by the backend.
        """
        ...

    def whole_test(self) -> Iterable[Any] | None:
        """Return a loader of the whole test split; None if the loader `test` already contains all of it."""
        ...


class Draws(NamedTuple):
    """The random draws of each batch.

    Attributes
    ----------
    table : str
        Qualified parameter name of the table from which rows are drawn with equal probabilities.
    number : int
        Number of drawn rows in a batch of the worker.
    """

    table: str
    number: int


@runtime_checkable
class Sampled(Protocol):
    """A use case with training batches that contain randomly drawn rows, such as negatives.

    The training loader draws the rows. A parameter server may replace them by other drawn rows, for instance
    by rows on the worker's node.
    """

    def draws(self, rank: int = 0) -> Draws:
        """Return the draws of worker `rank`'s training loader for each batch."""
        ...

    def with_drawn(self, batch: Any, rows: Tensor) -> Any:
        """Return the batch with other drawn rows, or with none.

        Parameters
        ----------
        batch : object
            Batch from the training loader.
        rows : Tensor
            Drawn rows, int64: the number that `draws` returns, or none. Only `keys` must accept a batch
            without them.
        """
        ...


class DataError(ValueError):
    """Data that cannot be used. The message names the file or value and the remedy."""
