"""Dense parameters: one flat buffer, of which the module's parameters are views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autoada.layout import DenseLayout
from autoada.transfer import Transfer


class DenseParameters:
    """The dense parameters of one rule: a pull and a push move them all.

    Parameters
    ----------
    layout : DenseLayout
        Where each parameter lies.
    parameters : mapping of str to nn.Parameter
        The model's parameters; they become views of the buffer and stay the same objects.
    worker : adaps.Worker
        Whose calls are used.
    table : adaps.NodeTable
        The server's table of blocks.
    transfer : Transfer
        To the parameters' device.
    """

    def __init__(
        self,
        layout: DenseLayout,
        parameters: Mapping[str, nn.Parameter],
        worker: Any,
        table: Any,
        transfer: Transfer,
    ) -> None:
        self._worker = worker
        self._transfer = transfer
        self._pushed: tuple[Tensor, Tensor] | None = None
        self._parameters = [parameters[name] for name in layout.names]
        self._spans = list(zip(layout.first_blocks, layout.blocks, strict=True))
        self._values = torch.zeros(layout.rows, layout.length, device=transfer.device)
        self._gradients = torch.zeros_like(self._values)
        self.keys: Tensor = table.keys(torch.arange(layout.rows))
        self._gradient_views = [self._view(self._gradients, i) for i in range(len(self._parameters))]
        for i, parameter in enumerate(self._parameters):
            view = self._view(self._values, i)
            view.copy_(parameter.detach())
            parameter.data = view

    def initialise(self) -> None:
        """Make the present values those of the server."""
        host = self._transfer.start_to_host(self._values)
        self._transfer.finish()
        self._worker.set(self.keys, host)

    def pull(self) -> None:
        """Refresh the parameters, in place."""
        if self._transfer.direct:
            self._worker.pull(self.keys, self._values)
            return
        host = self._transfer.host_array(*self._values.shape)
        self._worker.pull(self.keys, host)
        self._values.copy_(self._transfer.to_device(host))

    def collect(self) -> None:
        """Drop the gradients from the parameters, to be pushed; parameters without one are left out."""
        present = [i for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        if not present:
            return
        views = [self._gradient_views[i] for i in present]
        torch._foreach_copy_(views, [_gradient(self._parameters[i]) for i in present])
        if len(present) == len(self._parameters):
            keys, gradients = self.keys, self._gradients
        else:
            chosen = torch.cat(
                [torch.arange(first, first + count) for first, count in map(self._spans.__getitem__, present)]
            )
            keys, gradients = self.keys[chosen], self._gradients[chosen.to(self._gradients.device)]
        for i in present:
            self._parameters[i].grad = None
        self._pushed = (keys, self._transfer.start_to_host(gradients))

    def push(self) -> None:
        """Hand over what was collected and has arrived in host memory."""
        if self._pushed is not None:
            self._worker.push_gradients(*self._pushed)
            self._pushed = None

    def _view(self, buffer: Tensor, i: int) -> Tensor:
        first, count = self._spans[i]
        shape = self._parameters[i].shape
        return buffer[first : first + count].view(-1)[: shape.numel()].view(shape)


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_dense() if gradient.is_sparse else gradient
