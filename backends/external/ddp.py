"""PyTorch's DistributedDataParallel over gloo: every process has the whole model and averages gradients.

The gradients of embedding tables are sparse and are gathered from all processes in every step.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

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

ONE_THREAD = "gloo_with_one_thread"
"""Name of the backend of torch.distributed that `gloo_with_one_thread` makes."""


def gloo_with_one_thread(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Make a gloo backend that runs one operation at a time.

    PyTorch gives gloo two threads. In PyTorch 2.13, they damage the heap if both sum sparse tensors.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()  # There is no other way to choose the number of threads.
    options._threads = 1
    options._timeout = timeout
    interfaces = filter(None, os.environ.get("GLOO_SOCKET_IFNAME", "").split(","))
    devices = [gloo.create_device(interface=interface) for interface in interfaces]
    options._devices = devices or [gloo.create_default_device()]
    return gloo(store, rank, size, options)


class Ddp(PeerBackend):
    name = "ddp"
    distributed = True

    def open(self, usecase: UseCase, context: WorkerContext, options: Options) -> DdpSession:
        require_plain_context(self.name, context)
        require_row_numbers(self.name, usecase)
        if not hasattr(dist.Backend, ONE_THREAD.upper()):
            dist.Backend.register_backend(ONE_THREAD, gloo_with_one_thread, devices=["cpu"])
        context.per_process(lambda: ProcessGroup(context, ONE_THREAD))
        model = data_parallel(usecase.model())
        return DdpSession(model, usecase.optimizer(model))


class DdpSession(PlainSession):
    def synchronize(self) -> None:
        dist.barrier()


BACKEND = Ddp
