"""Use cases without a parameter server: training with plain PyTorch, and the rows that a loss reads."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor


class Epoch(NamedTuple):
    """The state after an epoch: the model, the loaders, and the losses of the epoch's batches."""

    model: Any
    loaders: Any
    losses: list[float]


def epochs_of(usecase: Any) -> Iterator[Epoch]:
    """Train for as many epochs as the use case's parameters specify and yield each finished epoch."""
    model, loaders = usecase.model(), usecase.loaders(0, 1)
    optimizer = usecase.optimizer(model)
    for _ in range(usecase.params.epochs):
        losses = []
        for batch in loaders.train:
            optimizer.zero_grad()
            loss = usecase.loss(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        yield Epoch(model, loaders, losses)


def rows_read(usecase: Any, batch: Any) -> dict[str, Tensor]:
    """The rows that the loss of the batch reads in each table with sparse gradients, in ascending order."""
    model = usecase.model()
    usecase.loss(model, batch).backward()
    return {
        name: parameter.grad.coalesce().indices()[0]
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and parameter.grad.is_sparse
    }
