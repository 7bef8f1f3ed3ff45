"""Plain PyTorch in one process, without a parameter server: what every other backend is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from adabench.backends.interface import Options as BackendOptions
from adabench.backends.interface import WorkerContext
from adabench.usecases.interface import UseCase


class Single:
    """Trains with the use case's own optimizer."""

    name: ClassVar[str] = "single"
    Options: ClassVar[type[BackendOptions]] = BackendOptions
    distributed: ClassVar[bool] = False

    def open(self, usecase: UseCase, cluster: WorkerContext, options: BackendOptions) -> SingleSession:
        return SingleSession(usecase)


class SingleSession:
    def __init__(self, usecase: UseCase) -> None:
        self.model: nn.Module = usecase.model()
        self._optimizer = usecase.optimizer(self.model)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(loader)

    def step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def synchronize(self) -> None:
        """Nothing to do: there is one worker."""

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Nothing to do: nothing is shared."""


BACKEND = Single
