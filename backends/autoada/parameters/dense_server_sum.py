"""Dense parameters that the user's own optimizer changes, alike on every worker."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import adaps
from autoada.parameters.dense_buffer import gradient_of
from autoada.parameters.device_copy import Transfer
from autoada.parameters.layout import TURNS, DenseLayout


class LocallySteppedParameters:
    """Parameters that stay on each worker, where the user's own optimizer changes them alike.

    Parameters
    ----------
    name : str
        What a checkpoint calls them.
    parameters : mapping of str to nn.Parameter
        By qualified names.
    transfer : Transfer
        To their device.
    optimizer : torch.optim.Optimizer
        Whose parameters they are.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, nn.Parameter],
        transfer: Transfer,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.name = name
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._transfer = transfer
        self._optimizer = optimizer
        optimizer.register_step_post_hook(self._forget_gradients)

    def begin(self) -> None:
        """Collective: all workers get the parameters of the one that leads."""
        raise NotImplementedError

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The parameters and what the optimizer knows of them, as a checkpoint keeps it."""
        state = {
            name: (parameter.detach(), self._optimizer.state.get(parameter, {}))
            for name, parameter in zip(self._names, self._parameters, strict=True)
        }
        file = io.BytesIO()
        torch.save(state, file)
        return {self.name: np.frombuffer(file.getvalue(), np.uint8)}

    def set_state(self, kept: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` gave."""
        file = io.BytesIO(kept[self.name].tobytes())
        state = torch.load(file, map_location=self._transfer.device, weights_only=True)
        with torch.no_grad():
            for name, parameter in zip(self._names, self._parameters, strict=True):
                value, known = state[name]
                parameter.copy_(value)
                self._optimizer.state[parameter] = known

    def _forget_gradients(self, *_: Any) -> None:
        for parameter in self._parameters:
            parameter.grad = None


class ServerSummedParameters(LocallySteppedParameters):
    """Parameters that stay on each worker, of which the server sums up the gradients of all workers.

    At each ``optimizer.step()`` a worker hands its gradients over and waits for those of all others; then all
    of them step with the same sums, from the same parameters and the same state, and so stay alike. A
    parameter without a gradient on any worker is left out. A worker that is closed is not waited for.

    Parameters
    ----------
    layout : DenseLayout
        Where each parameter's gradient lies.
    parameters : mapping of str to nn.Parameter
        The model's parameters.
    worker : adaps.Worker
        Whose calls are used.
    table : adaps.NodeTable
        The server's table of blocks.
    transfer : Transfer
        To the parameters' device.
    optimizer : torch.optim.Optimizer
        Whose parameters they are.
    leads : bool
        Whether this worker's parameters are those that all begin with.
    """

    def __init__(
        self,
        layout: DenseLayout,
        parameters: Mapping[str, nn.Parameter],
        worker: adaps.Worker,
        table: adaps.NodeTable,
        transfer: Transfer,
        optimizer: torch.optim.Optimizer,
        leads: bool,
    ) -> None:
        own = {name: parameters[name] for name in layout.names}
        super().__init__(layout.table, own, transfer, optimizer)
        self._layout = layout
        self._worker = worker
        self._leads = leads
        rows = layout.summed_rows
        self._keys = [table.keys(torch.arange(turn * rows, (turn + 1) * rows)) for turn in range(TURNS)]
        self._turn = 0
        self._pushed: Tensor | None = None

    def begin(self) -> None:
        """Collective: all workers get the parameters of the one that leads."""
        sums = self._empty()
        if self._leads:
            for i, parameter in enumerate(self._parameters):
                self._span(sums, i).copy_(parameter.detach())
            self._worker.set(self._keys[0], sums)
        self._worker.end_setup()
        self._worker.pull(self._keys[0], sums)
        with torch.no_grad():
            for i, parameter in enumerate(self._parameters):
                parameter.copy_(self._span(sums, i))
        self._turn = 0
        self._worker.barrier()
        if self._leads:
            for keys in self._keys:
                self._worker.set(keys, self._empty())
        self._worker.end_setup()

    def collect(self, scale: float) -> None:
        """Take the gradients of this worker."""
        given = torch.zeros(self._layout.summed_rows, self._layout.length, device=self._transfer.device)
        counts = given[self._layout.rows :].view(-1)
        for i, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._span(given, i).copy_(scale * gradient_of(parameter))
                counts[i] = 1.0
        self._pushed = self._transfer.start_to_host(given)

    def push(self) -> None:
        """Put the sums of all workers' gradients in the place of this one's. Waits for all workers."""
        assert self._pushed is not None
        keys = self._keys[self._turn % TURNS]
        self._worker.push(keys, self._pushed)
        self._worker.end_setup()
        sums = self._empty()
        self._worker.pull(keys, sums)
        if self._leads:  # everybody has read the sums of the step before, and nobody adds to that place yet
            self._worker.set(self._keys[(self._turn - 1) % TURNS], self._empty())
        self._turn += 1
        self._pushed = None
        counts = sums[self._layout.rows :].view(-1).tolist()
        on_device = self._transfer.to_device(sums)
        for i, parameter in enumerate(self._parameters):
            parameter.grad = self._span(on_device, i).to(parameter.dtype) if counts[i] else None

    def _empty(self) -> Tensor:
        return torch.zeros(self._layout.summed_rows, self._layout.length, dtype=torch.float32)

    def _span(self, buffer: Tensor, i: int) -> Tensor:
        first, count = self._layout.first_blocks[i], self._layout.blocks[i]
        shape = self._parameters[i].shape
        return buffer[first : first + count].view(-1)[: shape.numel()].view(shape)
