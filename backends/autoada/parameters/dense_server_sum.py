"""Dense parameters that stay on each worker. The server adds up their gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autoada.parameters.layout import TURNS, DenseLayout
from autoada.parameters.locally_stepped import LocallySteppedParameters, dense_gradient
from autoada.parameters.server_access import ServerAccess


class ServerSummedParameters(LocallySteppedParameters):
    """Parameters that the user's optimizer changes with the sums of all workers' gradients.

    At each ``optimizer.step()``, a worker pushes its gradients and waits for the gradients of all other
    workers. All workers then step with the same sums, from the same parameters and the same state, so their
    parameters remain equal. If no worker has a gradient of a parameter, the step leaves it out. Workers do
    not wait for a closed worker.
    """

    def __init__(
        self,
        layout: DenseLayout,
        parameters: Mapping[str, nn.Parameter],
        access: ServerAccess,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        super().__init__(layout.table, layout.names, parameters, access.transfer, optimizer)
        self._layout = layout
        self._worker = access.worker
        self._is_primary = access.is_primary
        table = access.node.table(layout.table)
        rows = layout.summed_rows
        self._keys = [table.keys(torch.arange(turn * rows, (turn + 1) * rows)) for turn in range(TURNS)]
        self._turn = 0
        self._pushed: Tensor | None = None

    def begin(self) -> None:
        """Collective: copy the parameters of the primary worker to all workers."""
        sums = self._empty()
        views = self._layout.views(sums)
        if self._is_primary:
            for view, parameter in zip(views, self._parameters, strict=True):
                view.copy_(parameter.detach())
            self._worker.set(self._keys[0], sums)
        self._worker.end_setup()
        self._worker.pull(self._keys[0], sums)
        with torch.no_grad():
            for view, parameter in zip(views, self._parameters, strict=True):
                parameter.copy_(view)
        self._turn = 0
        self._worker.barrier()
        if self._is_primary:
            for keys in self._keys:
                self._worker.set(keys, self._empty())
        self._worker.end_setup()

    def collect(self, scale: float) -> None:
        """Take the gradients of this worker."""
        given = torch.zeros(self._layout.summed_rows, self._layout.length, device=self._transfer.device)
        counts = given[self._layout.rows :].view(-1)
        for i, (view, parameter) in enumerate(zip(self._layout.views(given), self._parameters, strict=True)):
            if parameter.grad is not None:
                view.copy_(scale * dense_gradient(parameter.grad))
                counts[i] = 1.0
        self._pushed = self._transfer.start_to_host(given)

    def push(self) -> None:
        """Replace this worker's gradients by the sums of all workers' gradients. Waits for all workers."""
        assert self._pushed is not None
        keys = self._keys[self._turn % TURNS]
        self._worker.push(keys, self._pushed)
        self._worker.end_setup()
        sums = self._empty()
        self._worker.pull(keys, sums)
        if self._is_primary:
            # All workers have read the sums of the previous step, and none adds to that place yet.
            self._worker.set(self._keys[(self._turn - 1) % TURNS], self._empty())
        self._turn += 1
        self._pushed = None
        counts = sums[self._layout.rows :].view(-1).tolist()
        views = self._layout.views(self._transfer.to_device(sums))
        for view, count, parameter in zip(views, counts, self._parameters, strict=False):
            parameter.grad = view.to(parameter.dtype) if count else None

    def _empty(self) -> Tensor:
        return torch.zeros(self._layout.summed_rows, self._layout.length, dtype=torch.float32)
