"""One worker's access to the parameters of a model: the server on one side, the device on the other."""

from __future__ import annotations

from dataclasses import dataclass

import adaps
from autoada.parameters.device_copy import Transfer


@dataclass(frozen=True)
class ServerAccess:
    """A worker among all that train together: its calls to the server, and copies to the model's device."""

    node: adaps.Node
    worker: adaps.Worker
    local_index: int
    """Index of the worker among the workers of its node."""
    transfer: Transfer

    @property
    def worker_index(self) -> int:
        """Index among the workers of all nodes."""
        return self.node.rank * self.node.workers + self.local_index

    @property
    def num_workers(self) -> int:
        """Number of workers of all nodes."""
        return self.node.world_size * self.node.workers

    @property
    def is_primary(self) -> bool:
        """Whether all workers begin with the values of this one."""
        return self.worker_index == 0

    @property
    def alone(self) -> bool:
        """Whether no other worker changes the parameters."""
        return self.num_workers == 1
