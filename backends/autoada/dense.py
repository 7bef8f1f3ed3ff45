"""Dense parameters: one flat buffer, of which the module's parameters are views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autoada.layout import DenseLayout


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
    """

    def __init__(
        self, layout: DenseLayout, parameters: Mapping[str, nn.Parameter], worker: Any, table: Any
    ) -> None:
        self._worker = worker
        self._parameters = [parameters[name] for name in layout.names]
        self._spans = list(zip(layout.first_blocks, layout.blocks, strict=True))
        self._values = torch.zeros(layout.rows, layout.length)
        self._gradients = torch.zeros(layout.rows, layout.length)
        self.keys: Tensor = table.keys(torch.arange(layout.rows))
        self._gradient_views = [self._view(self._gradients, i) for i in range(len(self._parameters))]
        for i, parameter in enumerate(self._parameters):
            view = self._view(self._values, i)
            view.copy_(parameter.detach())
            parameter.data = view

    def initialise(self) -> None:
        """Make the present values those of the server."""
        self._worker.set(self.keys, self._values)

    def pull(self) -> None:
        """Refresh the parameters, in place."""
        self._worker.pull(self.keys, self._values)

    def push(self) -> None:
        """Hand the gradients over and drop them; parameters without a gradient are left out."""
        present = [i for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        if not present:
            return
        views = [self._gradient_views[i] for i in present]
        torch._foreach_copy_(views, [_gradient(self._parameters[i]) for i in present])
        if len(present) == len(self._parameters):
            self._worker.push_gradients(self.keys, self._gradients)
        else:
            chosen = torch.cat(
                [torch.arange(first, first + count) for first, count in map(self._spans.__getitem__, present)]
            )
            self._worker.push_gradients(self.keys[chosen], self._gradients[chosen])
        for i in present:
            self._parameters[i].grad = None

    def _view(self, buffer: Tensor, i: int) -> Tensor:
        first, count = self._spans[i]
        shape = self._parameters[i].shape
        return buffer[first : first + count].view(-1)[: shape.numel()].view(shape)


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_dense() if gradient.is_sparse else gradient
