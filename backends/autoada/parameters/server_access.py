"""One worker's access to the parameters of a model: the server on one side, the device on the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import adaps


@dataclass(frozen=True)
class ServerAccess:
    """A worker among all that train together: its calls to the server, and copies to the model's device."""

    node: adaps.Node
    worker: adaps.Worker
    local_index: int
    """Index of the worker among the workers of its node."""
    transfer: Transfer

    @cached_property
    def worker_index(self) -> int:
        """Index among the workers of all nodes."""
        return self.node.rank * self.node.workers + self.local_index

    @cached_property
    def num_workers(self) -> int:
        """Number of workers of all nodes."""
        return self.node.world_size * self.node.workers

    @cached_property
    def is_primary(self) -> bool:
        """Whether all workers begin with the values of this one."""
        return self.worker_index == 0

    @cached_property
    def alone(self) -> bool:
        """Whether no other worker changes the parameters."""
        return self.num_workers == 1


class Transfer:
    """Copies arrays to and from one device. If the device is the CPU, nothing is copied.

    Copies to and from an accelerator are asynchronous and use pinned memory. PyTorch's allocator of pinned
    memory reuses freed memory only when all copies from and to it have ended. So host arrays may be freed at
    any time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.direct = device.type == "cpu"
        """Whether the device is the CPU."""

    def host_array(self, *shape: int) -> Tensor:
        """Return uninitialized host memory for float32."""
        if self.direct:
            return torch.empty(shape, dtype=torch.float32, device="cpu")
        return torch.empty(shape, dtype=torch.float32, pin_memory=True, device="cpu")

    def to_device(self, host: Tensor) -> Tensor:
        """Copy an array to the device, in the order of its stream. `host` must not be used afterwards."""
        return host if self.direct else host.to(self.device, non_blocking=True)

    def start_to_host(self, values: Tensor) -> Tensor:
        """Return a float32 array that contains `values` after the next `finish`."""
        if self.direct:
            return values.float()
        host = self.host_array(*values.shape)
        host.copy_(values, non_blocking=True)
        return host

    def finish(self) -> None:
        """Wait until all copies have ended."""
        if not self.direct:
            torch.cuda.current_stream(self.device).synchronize()
