"""What a case of the suite of models is, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_map

Batches = Callable[[int, int], Sequence[Any]]
"""``batches(count, seed)``: the same for the same seed."""


@dataclass(frozen=True)
class Expected:
    """What an observer of the worker's calls sees on every node.

    At an exact clock the worker reads the rows that it had announced for it, and no others.

    Attributes
    ----------
    exact_from : int
        The first clock from which on all are exact, for all tables but those below.
    kept : tuple of str
        Tables that are announced as a whole.
    on_demand : tuple of str
        Tables of which rows are read without having been announced.
    told : tuple of str
        Regular expressions, one for each message that is logged.
    """

    exact_from: int = 0
    kept: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A model of a library, used as its own users do.

    Attributes
    ----------
    name : str
        The class, and what is special about it.
    build : callable
        Makes the model; imports the library.
    batches : callable
        Its training data.
    loss : callable
        ``loss(model, batch)``: what the library's training loop does with a batch until it calls
        ``backward()``.
    expected : Expected
        What is announced, read and told on two nodes.
    after_step : callable, optional
        ``after_step(model)``: what the library's loop does after ``optimizer.step()``.
    rate : float
        SGD's learning rate.
    tables : tuple of str, optional
        Parameters that are named as tables.
    sensitive : bool
        Whether training makes so much of the least difference that losses of another rounding are others.
    dear : str
        Why a step on one node costs more than 1.5 times the plain one's CPU time, where it does.
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
        """This case, trained on `device`: its loop moves there what its batches hold."""
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
