"""Use cases without a parameter server: training with plain PyTorch."""

from collections.abc import Iterator
from typing import Any, NamedTuple


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
