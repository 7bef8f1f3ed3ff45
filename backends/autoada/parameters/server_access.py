"""One worker's access to the parameters of a model: the server on one side, the device on the other."""

from __future__ import annotations

from dataclasses import dataclass

import adaps
from autoada.parameters.device_copy import Transfer


@dataclass(frozen=True)
class ServerAccess:
    """A worker's calls to the server, and copies to and from the model's device.

    Attributes
    ----------
    node : adaps.Node
        Node of this process.
    worker : adaps.Worker
        The worker that trains the model.
    transfer : Transfer
        Copies between host memory and the model's device.
    num_workers : int
        Number of workers that train together, on all nodes.
    is_primary : bool
        Whether all workers begin with the values of this worker.
    """

    node: adaps.Node
    worker: adaps.Worker
    transfer: Transfer
    num_workers: int
    is_primary: bool

    @property
    def alone(self) -> bool:
        """Whether no other worker changes the parameters."""
        return self.num_workers == 1
