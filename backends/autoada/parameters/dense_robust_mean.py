"""Dense parameters that stay on each worker. All workers combine their gradients by a rule."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from autoada.parameters.device_copy import Transfer
from autoada.parameters.layout import AllReducedLayout, DenseLayout
from autoada.parameters.locally_stepped import LocallySteppedParameters, dense_gradient
from autoada.sync.gradient_exchange import CombinedGradients, GradientExchange, Gradients

BLOCK = 64
"""Number of elements of a gradient that one worker combines together."""


class RobustMeanParameters(LocallySteppedParameters):
    """Parameters that the user's optimizer changes with the combined gradients of all workers.

    A parameter without a gradient on any worker is left out of the step.
    """

    def __init__(
        self,
        layout: AllReducedLayout,
        parameters: Mapping[str, nn.Parameter],
        exchange: GradientExchange,
        transfer: Transfer,
    ) -> None:
        super().__init__(layout.name, layout.names, parameters, transfer, layout.optimizer)
        self._exchange = exchange
        own = {name: parameters[name] for name in layout.names}
        double = any(parameter.dtype is torch.float64 for parameter in self._parameters)
        self._layout = DenseLayout.of(layout.name, own, torch.float64 if double else torch.float32, BLOCK)
        self._spans = [
            torch.arange(first, first + count)
            for first, count in zip(self._layout.first_blocks, self._layout.blocks, strict=True)
        ]
        self._given: Gradients | None = None

    def begin(self) -> None:
        """Collective: copy the parameters of the primary worker to all workers."""
        self._broadcast(self._exchange.broadcast)

    def collect(self, scale: float) -> None:
        """Take the gradients of this worker. `scale` has no effect, because gradients are not added up."""
        del scale
        rows = torch.zeros(self._layout.rows, BLOCK, dtype=self._layout.dtype)
        keys = []
        for view, span, parameter in zip(
            self._layout.views(rows), self._spans, self._parameters, strict=True
        ):
            if parameter.grad is not None:
                view.copy_(dense_gradient(parameter.grad))
                keys.append(span)
        chosen = torch.cat(keys) if keys else torch.empty(0, dtype=torch.int64)
        self._given = Gradients(chosen, rows[chosen])

    def given(self) -> Gradients:
        """Return the collected gradients."""
        assert self._given is not None
        return self._given

    def put(self, combined: CombinedGradients) -> None:
        """Collective: replace this worker's gradients by the combined gradients."""
        self._given = None
        keys, values = self._exchange.spread(combined.gradients)
        rows = torch.zeros(self._layout.rows, BLOCK, dtype=self._layout.dtype)
        rows[keys] = values
        present = torch.zeros(self._layout.rows, dtype=torch.bool)
        present[keys] = True
        views = self._layout.views(rows)
        for view, first, parameter in zip(views, self._layout.first_blocks, self._parameters, strict=True):
            parameter.grad = view.to(parameter.device, parameter.dtype, copy=True) if present[first] else None
