"""The hook by which ``optimizer.step()`` hands gradients to the parameter server."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def push_at_step(
    optimizer: torch.optim.Optimizer,
    in_server: Container[int],
    push: Callable[[torch.optim.Optimizer], None],
) -> None:
    """Let ``optimizer.step()`` push; torch's own step then finds no gradient and does nothing.

    `in_server` has the identities of those parameters of which this holds; others stay the optimizer's own.
    After the step all gradients are those from before it, as in PyTorch: `zero_grad` drops them.
    """
    hidden: list[tuple[nn.Parameter, torch.Tensor | None]] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in in_server:
                optimizer.state.pop(parameter, None)  # the state is the server's now

    def before_step(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:  # the first one is the optimizer
            raise ValueError(
                "optimizer.step() takes no closure on the parameter server: call it after loss.backward()"
            )
        push(optimizer)

    def hide_gradients(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        hidden[:] = [(parameter, parameter.grad) for parameter in parameters]
        before_step(optimizer, args, kwargs)
        for parameter in parameters:
            if id(parameter) in in_server:
                parameter.grad = None

    def show_gradients(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for parameter, gradient in hidden:
            parameter.grad = gradient
        hidden.clear()

    optimizer.register_step_pre_hook(hide_gradients)
    optimizer.register_step_post_hook(show_gradients)
    known = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    pushes_all = all(id(parameter) in in_server for parameter in known)
    if pushes_all and "step" not in vars(optimizer):  # where a scheduler watches it, it stays
        optimizer.step = MethodType(_step_of(type(optimizer), known, before_step), optimizer)  # type: ignore[method-assign]


def _step_of(
    kind: type[torch.optim.Optimizer], known: list[nn.Parameter], hook: Callable[..., None]
) -> Callable[..., Any]:
    """`kind`'s ``step``, of which only `hook` is left if nobody else follows it.

    The gradients of all parameters, those in `known`, are handed over then, and torch would spend as much
    time as a step of a small model takes on finding that none is left.
    """

    @functools.wraps(kind.step)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        present = [parameter for group in self.param_groups for parameter in group["params"]]
        followed = (
            len(present) != len(known)
            or not all(map(operator.is_, present, known))
            or len(self._optimizer_step_pre_hooks) + len(_global_optimizer_pre_hooks) > 2
            or len(self._optimizer_step_post_hooks) > 1
            or _global_optimizer_post_hooks
            or torch.autograd.profiler._is_profiler_enabled
        )
        return kind.step(self, *args, **kwargs) if followed else hook(self, (self, *args), kwargs)

    return step
