"""PyTorch's DistributedDataParallel over gloo: every process has the whole model and averages gradients.

The gradients of embedding tables are sparse and are gathered from all processes in every step.
"""

from __future__ import annotations

import torch.distributed as dist

from adabench.backends.external._shared import (
    PeerBackend,
    PlainSession,
    ProcessGroup,
    data_parallel,
    require_plain_context,
    require_row_numbers,
)
from adabench.backends.interface import Options, WorkerContext
from adabench.usecases.interface import UseCase


class Ddp(PeerBackend):
    name = "ddp"
    distributed = True

    def open(self, usecase: UseCase, context: WorkerContext, options: Options) -> DdpSession:
        require_plain_context(self.name, context)
        require_row_numbers(self.name, usecase)
        context.per_process(lambda: ProcessGroup(context))
        model = data_parallel(usecase.model())
        return DdpSession(model, usecase.optimizer(model))


class DdpSession(PlainSession):
    def synchronize(self) -> None:
        dist.barrier()


BACKEND = Ddp
