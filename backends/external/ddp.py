"""PyTorch's DistributedDataParallel over gloo: every process holds the whole model and averages gradients.

The gradients of embedding tables are sparse and are gathered from all processes in every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor

from adabench.backends.external._shared import ProcessGroup, data_parallel, require_plain_cluster
from adabench.backends.interface import Options as BackendOptions
from adabench.backends.interface import WorkerContext
from adabench.usecases.interface import UseCase


class Ddp:
    name: ClassVar[str] = "ddp"
    Options: ClassVar[type[BackendOptions]] = BackendOptions
    distributed: ClassVar[bool] = True

    def open(self, usecase: UseCase, cluster: WorkerContext, options: BackendOptions) -> DdpSession:
        require_plain_cluster(self.name, cluster)
        cluster.per_process(lambda: ProcessGroup(cluster))
        return DdpSession(usecase)


class DdpSession:
    def __init__(self, usecase: UseCase) -> None:
        self.model = data_parallel(usecase.model())
        self._optimizer = usecase.optimizer(self.model)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(loader)

    def step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def synchronize(self) -> None:
        dist.barrier()

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """The process group is closed by its owner."""


BACKEND = Ddp
