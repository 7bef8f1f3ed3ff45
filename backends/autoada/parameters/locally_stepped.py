"""Parameters that stay on each worker. The user's optimizer makes the same change on all workers."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import adaps
from autoada.parameters.layout import TURNS, AllReducedLayout, DenseLayout
from autoada.parameters.server_access import ServerAccess, Transfer
from autoada.sync.gradient_exchange import CombinedGradients, GradientExchange, Gradients

BLOCK = 64
"""Number of elements of a gradient that one worker combines together by a rule."""


class LocallySteppedParameters:
    """Base class of parameters that the user's optimizer changes, on each worker with the same gradients."""

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        parameters: Mapping[str, nn.Parameter],
        transfer: Transfer,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.name = name
        self._names = names
        self.parameters = [parameters[each] for each in names]
        self._transfer = transfer
        self.optimizer = optimizer
        """Optimizer at whose steps the gradients are exchanged."""

    def begin(self) -> None:
        """Collective: copy the parameters of the primary worker to all workers."""
        raise NotImplementedError

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the parameters and their state in the optimizer, in the form of a checkpoint."""
        state = {
            name: (parameter.detach(), self.optimizer.state.get(parameter, {}))
            for name, parameter in zip(self._names, self.parameters, strict=True)
        }
        file = io.BytesIO()
        torch.save(state, file)
        return {self.name: np.frombuffer(file.getvalue(), np.uint8)}

    def check_state(self, kept: Mapping[str, npt.NDArray[Any]]) -> None:
        """Raise CheckpointError if this is not the result of `state` for the same parameters."""
        state = self._loaded(kept, "cpu") if self.name in kept else {}
        for name, parameter in zip(self._names, self.parameters, strict=True):
            if name not in state or state[name][0].shape != parameter.shape:
                raise adaps.CheckpointError(
                    f"the checkpoint has no values of shape {tuple(parameter.shape)} for the parameter "
                    f"{name!r} among those that {type(self.optimizer).__name__} steps on each worker: "
                    "restore into the same model with the same optimizers"
                )

    def set_state(self, kept: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a result of `state`."""
        state = self._loaded(kept, self._transfer.device)
        with torch.no_grad():
            for name, parameter in zip(self._names, self.parameters, strict=True):
                value, known = state[name]
                parameter.copy_(value)
                self.optimizer.state.pop(parameter, None)
                if known:
                    self.optimizer.state[parameter] = known

    def _loaded(self, kept: Mapping[str, npt.NDArray[Any]], device: torch.device | str) -> dict[str, Any]:
        """Return each parameter's values and its state in the optimizer, by its name."""
        file = io.BytesIO(kept[self.name].tobytes())
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        return state

    def _put_gradient(self, parameter: nn.Parameter, gradient: Tensor | None) -> None:
        """Set the gradient with which the optimizer steps."""
        if gradient is not None and isinstance(self.optimizer, torch.optim.SparseAdam):
            gradient = gradient.to_sparse(1)  # SparseAdam accepts no other gradient.
        parameter.grad = gradient

    def refuse_to_move(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise ValueError if another optimizer, `optimizer`, now has one of the parameters."""
        present = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in zip(self._names, self.parameters, strict=True):
            if id(parameter) in present:
                raise ValueError(
                    f"the parameter {name!r} has moved from {type(self.optimizer).__name__}, for whose steps "
                    f"all workers exchange its gradient, to {type(optimizer).__name__}: form the groups "
                    "before AdaModel wraps the model"
                )

    def _broadcast(self, send: Callable[[Tensor], None]) -> None:
        """Replace the parameters by the primary worker's; ``send`` replaces bytes in host memory."""
        for parameter in filter(torch.numel, self.parameters):
            value = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            send(value)
            with torch.no_grad():
                parameter.copy_(value.view(parameter.dtype).view(parameter.shape))


def dense_gradient(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor, which autograd does not record."""
    if gradient.requires_grad:
        gradient = gradient.detach()
    return gradient.to_dense() if gradient.is_sparse else gradient


class ServerSummedParameters(LocallySteppedParameters):
    """Parameters that the user's optimizer changes with the sums of all workers' gradients.

    At each ``optimizer.step()``, a worker pushes its gradients and waits for the gradients of all other
    workers. All workers then step with the same sums, from the same parameters and the same state, so their
    parameters remain equal. If no worker has a gradient of a parameter, the step leaves it out. Workers do
    not wait for a closed worker. A single worker steps with its gradients as they are.
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
        self._alone = access.alone
        table = access.node.table(layout.table)
        rows = layout.summed_rows
        self._keys = [
            table.keys(torch.arange(turn * rows, (turn + 1) * rows, device="cpu")) for turn in range(TURNS)
        ]
        self._turn = 0
        self._pushed: Tensor | None = None

    def begin(self) -> None:
        """Collective: copy the parameters of the primary worker to all workers."""
        if self._alone:
            return
        sums = self._empty()
        views = self._layout.views(sums)
        if self._is_primary:
            for view, parameter in zip(views, self.parameters, strict=True):
                view.copy_(parameter.detach())
            self._worker.set(self._keys[0], sums)
        self._worker.end_setup()
        self._worker.pull(self._keys[0], sums)
        with torch.no_grad():
            for view, parameter in zip(views, self.parameters, strict=True):
                parameter.copy_(view)
        self._turn = 0
        self._worker.barrier()
        if self._is_primary:
            for keys in self._keys:
                self._worker.set(keys, self._empty())
        self._worker.end_setup()

    def collect(self, scale: float) -> None:
        """Take the gradients of this worker."""
        if self._alone:
            return
        given = self._empty(self._transfer.device)
        counts = given[self._layout.rows :].view(-1)
        for i, (view, parameter) in enumerate(zip(self._layout.views(given), self.parameters, strict=True)):
            if parameter.grad is not None:
                view.copy_(scale * dense_gradient(parameter.grad))
                counts[i] = 1.0
        self._pushed = self._transfer.start_to_host(given)

    def push(self) -> None:
        """Replace this worker's gradients by the sums of all workers' gradients. Waits for all workers."""
        if self._pushed is None:
            return
        keys = self._keys[self._turn % TURNS]
        self._worker.push(keys, self._pushed)
        self._worker.end_setup()
        sums = self._empty()
        self._worker.pull(keys, sums)
        # All workers have read the sums of the previous step, and none adds to that place yet. Each worker
        # clears it, because any of the others may have closed.
        self._worker.set(self._keys[(self._turn - 1) % TURNS], self._empty())
        self._turn += 1
        self._pushed = None
        counts = sums[self._layout.rows :].view(-1).tolist()
        views = self._layout.views(self._transfer.to_device(sums))
        for view, count, parameter in zip(views, counts, self.parameters, strict=False):
            self._put_gradient(parameter, view.to(parameter.dtype) if count else None)

    def _empty(self, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(self._layout.summed_rows, self._layout.length, dtype=torch.float32, device=device)


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
        double = any(parameter.dtype is torch.float64 for parameter in self.parameters)
        self._layout = DenseLayout.of(layout.name, own, torch.float64 if double else torch.float32, BLOCK)
        self._spans = [
            torch.arange(first, first + count, device="cpu")
            for first, count in zip(self._layout.first_blocks, self._layout.blocks, strict=True)
        ]
        self._given: Gradients | None = None

    def begin(self) -> None:
        """Collective: copy the parameters of the primary worker to all workers."""
        self._broadcast(self._exchange.group.broadcast)

    def collect(self, scale: float) -> None:
        """Take the gradients of this worker. `scale` has no effect, because gradients are not added up."""
        del scale
        rows = torch.zeros(self._layout.rows, BLOCK, dtype=self._layout.dtype, device="cpu")
        keys = []
        for view, span, parameter in zip(self._layout.views(rows), self._spans, self.parameters, strict=True):
            if parameter.grad is not None:
                view.copy_(dense_gradient(parameter.grad))
                keys.append(span)
        chosen = torch.cat(keys) if keys else torch.empty(0, dtype=torch.int64, device="cpu")
        self._given = Gradients(chosen, rows[chosen])

    def given(self) -> Gradients:
        """Return the collected gradients."""
        assert self._given is not None
        return self._given

    def put(self, combined: CombinedGradients) -> None:
        """Collective: replace this worker's gradients by the combined gradients."""
        self._given = None
        keys, values = self._exchange.spread(combined.gradients)
        rows = torch.zeros(self._layout.rows, BLOCK, dtype=self._layout.dtype, device="cpu")
        rows[keys] = values
        present = torch.zeros(self._layout.rows, dtype=torch.bool, device="cpu")
        present[keys] = True
        views = self._layout.views(rows)
        for view, first, parameter in zip(views, self._layout.first_blocks, self.parameters, strict=True):
            gradient = view.to(parameter.device, parameter.dtype, copy=True) if present[first] else None
            self._put_gradient(parameter, gradient)
