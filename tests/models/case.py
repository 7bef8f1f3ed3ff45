"""A case of the suite of models, and its expected behavior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_map

Batches = Callable[[int, int], Sequence[Any]]
"""``batches(count, seed)`` returns the same batches for the same seed."""


@dataclass(frozen=True)
class Expected:
    """The calls of the worker that an observer sees on every node.

    At an exact clock, the worker reads exactly the rows that it announced for that clock.

    Attributes
    ----------
    exact_from : int
        The clock from which on all clocks are exact, for all tables but the following.
    kept : tuple of str
        The tables that are announced as a whole.
    on_demand : tuple of str
        The tables of which rows are read without having been announced.
    told : tuple of str, optional
        Regular expressions, one for each message in the log; None if the messages depend on random numbers.
    """

    exact_from: int = 0
    kept: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()
    told: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class Case:
    """A model of a library, used as the users of the library do.

    Attributes
    ----------
    name : str
        The name of the class, and what is special about the case.
    build : callable
        A function that imports the library and makes the model.
    batches : callable
        The training data.
    loss : callable
        ``loss(model, batch)``: the part of the library's training loop between a batch and ``backward()``.
    expected : Expected
        The expected announcements, reads and messages on two nodes.
    after_step : callable, optional
        ``after_step(model)``: the part of the library's loop after ``optimizer.step()``.
    rate : float
        The learning rate of SGD.
    tables : tuple of str, optional
        The parameters that are given as tables by name.
    sensitive : bool
        Whether training makes so much of the least difference that losses of another rounding are others.
    dear : str
        The reason if a step on one node costs more than 1.5 times the CPU time of a plain step.
    """

    name: str
    build: Callable[[], nn.Module]
    batches: Batches
    loss: Callable[[Any, Any], Tensor]
    expected: Expected = field(default_factory=Expected)
    after_step: Callable[[Any], None] | None = None
    rate: float = 0.05
    tables: tuple[str, ...] | None = None
    sensitive: bool = False
    dear: str = ""

    def on(self, device: torch.device) -> Case:
        """Return the case trained on `device`: its loop moves the tensors of each batch there."""
        if device.type == "cpu":
            return self

        def loss(model: Any, batch: Any) -> Tensor:
            return self.loss(model, moved(batch, device))

        return replace(self, build=lambda: self.build().to(device), loss=loss)


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`."""
    if hasattr(batch, "to"):
        return batch.to(device)
    return tree_map(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, batch)


def maker(
    library: Callable[[], Any], name: str, arguments: Callable[[], Sequence[Any]] = tuple, **options: Any
) -> Callable[[], nn.Module]:
    """A function that makes a model of a library's class; nothing is imported before it is called."""

    def make() -> nn.Module:
        model: nn.Module = getattr(library(), name)(*arguments(), **options)
        return model

    return make


def drawn(batch: Callable[[Generator], Any]) -> Batches:
    """Batches that ``batch(generator)`` draws one by one."""

    def batches(count: int, seed: int) -> list[Any]:
        generator = Generator().manual_seed(seed)
        return [batch(generator) for _ in range(count)]

    return batches
