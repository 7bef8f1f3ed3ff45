"""A plain model and an equal wrapped model that are trained in the same way."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import autoada

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
Made = TypeVar("Made", bound=nn.Module)
Result = TypeVar("Result")


def plain_and_wrapped(
    make: Callable[[], Made],
    optimizer: Callable[[Made], Any],
    run: Callable[[Any, Any], Result],
    **options: Any,
) -> tuple[Result, Result]:
    """Results of ``run(model, optimizer)`` for a plain model, and for an equal one in an `AdaModel`.

    Both models are made after the same seed. `options` are the wrapper's.
    """
    torch.manual_seed(0)
    net = make()
    plain = run(net, optimizer(net))
    torch.manual_seed(0)
    net = make()
    given = optimizer(net)
    model = autoada.AdaModel(net, given, **options)
    wrapped = run(model, given)
    model.close()
    return plain, wrapped


def train(
    model: Any, optimizers: Optimizers, batches: Iterable[Any], loss_of: Callable[[Any, Any], Tensor]
) -> list[float]:
    """The losses of a step for each batch."""
    steps = optimizers if isinstance(optimizers, Sequence) else [optimizers]
    losses = []
    for batch in batches:
        loss = loss_of(model, batch)
        for optimizer in steps:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in steps:
            optimizer.step()
        losses.append(loss.item())
    return losses


def click_batches(rows: int, steps: int, samples: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Four row ids for each sample, and labels 0 or 1; always the same."""
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randint(0, rows, (samples, 4), generator=generator),
            torch.randint(0, 2, (samples, 1), generator=generator).float(),
        )
        for _ in range(steps)
    ]
