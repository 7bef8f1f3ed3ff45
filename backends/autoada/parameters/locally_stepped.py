"""Dense parameters that stay on each worker. The user's optimizer makes the same change on all workers."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autoada.parameters.device_copy import Transfer


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
        self._parameters = [parameters[each] for each in names]
        self._transfer = transfer
        self.optimizer = optimizer

    def begin(self) -> None:
        """Collective: copy the parameters of the primary worker to all workers."""
        raise NotImplementedError

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the parameters and their state in the optimizer, in the form of a checkpoint."""
        state = {
            name: (parameter.detach(), self.optimizer.state.get(parameter, {}))
            for name, parameter in zip(self._names, self._parameters, strict=True)
        }
        file = io.BytesIO()
        torch.save(state, file)
        return {self.name: np.frombuffer(file.getvalue(), np.uint8)}

    def set_state(self, kept: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a result of `state`."""
        file = io.BytesIO(kept[self.name].tobytes())
        state = torch.load(file, map_location=self._transfer.device, weights_only=True)
        with torch.no_grad():
            for name, parameter in zip(self._names, self._parameters, strict=True):
                value, known = state[name]
                parameter.copy_(value)
                self.optimizer.state[parameter] = known

    def refuse_to_move(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise ValueError if another optimizer, `optimizer`, now has one of the parameters."""
        present = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if id(parameter) in present:
                raise ValueError(
                    f"the parameter {name!r} has moved from {type(self.optimizer).__name__}, for whose steps "
                    f"all workers exchange its gradient, to {type(optimizer).__name__}: form the groups "
                    "before AdaModel wraps the model"
                )

    def _broadcast(self, send: Callable[[Tensor], None]) -> None:
        """Replace the parameters by the primary worker's; ``send`` replaces bytes in host memory."""
        for parameter in filter(torch.numel, self._parameters):
            value = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            send(value)
            with torch.no_grad():
                parameter.copy_(value.view(parameter.dtype).view(parameter.shape))


def dense_gradient(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor, which autograd does not record."""
    if gradient.requires_grad:
        gradient = gradient.detach()
    return gradient.to_dense() if gradient.is_sparse else gradient
