"""Workers with wrong gradients, to measure their effect on a training."""

from collections import deque

import torch
from torch import Tensor

import autoada
from adabench.backends.interface import ServerOptions, Unavailable, WorkerContext
from autoada.parameters.table_gradients import RowGradient
from autoada.parameters.table_parameter import TableParameter


class Fault:
    """Modifies one worker's gradients in each step, between ``backward()`` and the optimizer's step.

    Parameters
    ----------
    options : ServerOptions
        Options with a fault.
    context : WorkerContext
        Worker with the fault.
    model : autoada.AdaModel
        Model of the worker.
    """

    def __init__(self, options: ServerOptions, context: WorkerContext, model: autoada.AdaModel) -> None:
        self._kind, self._severity = options.fault, options.severity
        self._tables = [each for each in model.module.parameters() if isinstance(each, TableParameter)]
        self._dense = [each for each in model.module.parameters() if not isinstance(each, TableParameter)]
        self._generator = torch.Generator().manual_seed(context.seed << 16 | context.index)
        self._before: deque[list[Tensor | None]] = deque()

    def spoil(self) -> None:
        """Modify the current gradients."""
        if self._kind == "stale":
            self._delay()
            return
        gradients = [each.grad for each in (*self._tables, *self._dense)]
        for whole in gradients:
            if whole is None:
                continue
            gradient = whole.store.rows()[1] if isinstance(whole, RowGradient) else whole
            if self._kind == "nan":
                gradient.fill_(torch.nan)
            elif self._kind == "noise":
                size = float(gradient.square().mean().sqrt()) if gradient.numel() else 0.0
                drawn = torch.randn(gradient.shape, generator=self._generator)
                gradient.add_((self._severity * size * drawn).to(gradient))
            else:
                gradient.mul_(-self._severity if self._kind == "flip" else self._severity)

    def _delay(self) -> None:
        """Replace the gradients by those of earlier steps, or by none at first."""
        parameters = [*self._tables, *self._dense]
        self._before.append([None if each.grad is None else each.grad.clone() for each in parameters])
        late = len(self._before) > self._severity
        old = self._before.popleft() if late else [None] * len(parameters)
        for parameter, gradient in zip(parameters, old, strict=True):
            parameter.grad = gradient


def fault_of(options: ServerOptions, context: WorkerContext, model: autoada.AdaModel) -> Fault | None:
    """Return the fault of this worker, if the options define one."""
    if options.fault == "none":
        return None
    workers = context.world_size * context.workers
    for number in options.faulty_workers:
        if number >= workers:
            raise Unavailable(
                f"faulty={options.faulty} names worker {number}, but there are {workers}, from 0 to "
                f"{workers - 1}"
            )
    return Fault(options, context, model) if context.index in options.faulty_workers else None
