"""Dense parameters that stay on each worker, and whose gradients all workers combine by a rule."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import torch
from torch import nn

from autoada.parameters.dense_buffer import gradient_of
from autoada.parameters.dense_server_sum import LocallySteppedParameters
from autoada.parameters.device_copy import Transfer
from autoada.parameters.layout import AllReducedLayout
from autoada.sync.gradient_exchange import CombinedGradients, GradientExchange, Gradients

BLOCK = 64
"""Numbers of a gradient that one worker combines together."""


class RobustMeanParameters(LocallySteppedParameters):
    """Parameters that the user's optimizer changes with what all workers' gradients are combined to.

    A parameter without a gradient on any worker is left out of the step.

    Parameters
    ----------
    layout : AllReducedLayout
        Which ones they are.
    parameters : mapping of str to nn.Parameter
        The model's parameters.
    exchange : GradientExchange
        Of all workers.
    transfer : Transfer
        To the parameters' device.
    """

    def __init__(
        self,
        layout: AllReducedLayout,
        parameters: Mapping[str, nn.Parameter],
        exchange: GradientExchange,
        transfer: Transfer,
    ) -> None:
        own = {name: parameters[name] for name in layout.names}
        super().__init__(layout.name, own, transfer, layout.optimizer)
        self._exchange = exchange
        double = any(parameter.dtype is torch.float64 for parameter in self._parameters)
        self._dtype = torch.float64 if double else torch.float32
        self._blocks = [ceil(parameter.numel() / BLOCK) for parameter in self._parameters]
        self._first = [sum(self._blocks[:i]) for i in range(len(self._blocks))]
        self._given = self._none()

    def begin(self) -> None:
        """Collective: all workers get the parameters of the one that leads."""
        for parameter in filter(torch.numel, self._parameters):
            value = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self._exchange.broadcast(value)
            with torch.no_grad():
                parameter.copy_(value.view(parameter.dtype).view(parameter.shape))

    def collect(self, scale: float) -> None:
        """Take the gradients of this worker; `scale` is for who adds them up."""
        del scale
        keys, values = [], []
        for parameter, first, blocks in zip(self._parameters, self._first, self._blocks, strict=True):
            if parameter.grad is not None:
                rows = torch.zeros(blocks, BLOCK, dtype=self._dtype)
                rows.view(-1)[: parameter.numel()] = gradient_of(parameter).detach().reshape(-1).cpu()
                keys.append(torch.arange(first, first + blocks))
                values.append(rows)
        self._given = Gradients(torch.cat(keys), torch.cat(values)) if keys else self._none()

    def given(self) -> Gradients:
        """What was collected."""
        return self._given

    def put(self, combined: CombinedGradients) -> None:
        """Collective: put what was combined in the place of this worker's gradients."""
        self._given = self._none()
        keys, values = self._exchange.spread(combined.gradients)
        total = sum(self._blocks)
        flat = torch.zeros(total, BLOCK, dtype=self._dtype)
        flat[keys] = values
        present = torch.zeros(total, dtype=torch.bool)
        present[keys] = True
        for parameter, first, blocks in zip(self._parameters, self._first, self._blocks, strict=True):
            if blocks > 0 and not present[first]:
                parameter.grad = None
            else:
                part = flat[first : first + blocks].view(-1)[: parameter.numel()].view(parameter.shape)
                parameter.grad = part.to(parameter.device, parameter.dtype, copy=True)

    def _none(self) -> Gradients:
        return Gradients(torch.empty(0, dtype=torch.int64), torch.empty(0, BLOCK, dtype=self._dtype))
