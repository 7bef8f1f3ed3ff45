"""Lets ``optimizer.step()`` hand gradients to the parameter server."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from autoada.optimizer.rules import parameters_of

Push = Callable[[torch.optim.Optimizer], None]
_GRADIENT: Any = torch.Tensor.grad
"""The attribute that autograd uses. The attribute of a table's parameter returns another form of it."""


def push_at_step(
    optimizer: torch.optim.Optimizer, in_server: Container[int], own: Container[int], push: Push
) -> None:
    """Let ``optimizer.step()`` push; torch's own step then finds no gradient and does nothing.

    `in_server` has the identities of the parameters that the server steps, and `own` of the parameters that
    the optimizer steps. A push may replace the gradients of the latter for the step. After the step, all
    parameters have the gradients from before it, as in PyTorch, where `zero_grad` drops them.
    """
    hidden: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def push_and_hide(_: torch.optim.Optimizer) -> None:
        hidden[:] = [
            (parameter, _GRADIENT.__get__(parameter))
            for parameter in parameters_of(optimizer)
            if id(parameter) in in_server or id(parameter) in own
        ]
        push(optimizer)
        for parameter, _gradient in hidden:
            if id(parameter) in in_server:
                _GRADIENT.__set__(parameter, None)

    kind = type(optimizer)
    # All optimizers of torch evaluate their closure first. Others may ignore it.
    evaluates_closure = kind.step.__module__.startswith("torch.optim.")

    def before_step(
        _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = _closure_of(args, kwargs)
        if isinstance(closure, ClosureWithPush):  # made for another model, or for a subclass's step
            closure.also(push_and_hide)
            return None
        if closure is None and not evaluates_closure:
            push_and_hide(optimizer)
            return None
        pushing = ClosureWithPush(optimizer, closure, push_and_hide)
        if len(args) > 1:
            return (args[0], pushing, *args[2:]), kwargs
        return args, {**kwargs, "closure": pushing}

    def after_step(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for parameter, gradient in hidden:
            _GRADIENT.__set__(parameter, gradient)
        hidden.clear()
        closure = _closure_of(args, kwargs)
        if isinstance(closure, ClosureWithPush):
            closure.check_evaluated()

    optimizer.register_step_pre_hook(before_step)
    optimizer.register_step_post_hook(after_step)
    known = parameters_of(optimizer)
    pushes_all = all(id(parameter) in in_server for parameter in known)
    if pushes_all and "step" not in vars(optimizer):  # where a scheduler watches it, it stays
        optimizer.step = MethodType(_step_of(kind, known, push), optimizer)  # type: ignore[method-assign]
    if kind.zero_grad is torch.optim.Optimizer.zero_grad and "zero_grad" not in vars(optimizer):
        optimizer.zero_grad = MethodType(_zero_grad, optimizer)  # type: ignore[method-assign]


class ClosureWithPush:
    """The closure of one step: evaluates the user's closure, if there is one, and pushes its gradients."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None, push: Push
    ) -> None:
        self._optimizer = optimizer
        self._closure = closure
        self._pushes = [push]
        self._evaluated = False

    def also(self, push: Push) -> None:
        """Also hand the gradients over to another model."""
        if push not in self._pushes:
            self._pushes.append(push)

    def __call__(self) -> Any:
        if self._evaluated:
            raise RuntimeError(
                f"{type(self._optimizer).__name__} evaluates its closure several times in a step, but the "
                "parameter server takes the gradients of one evaluation: use an optimizer that needs only one"
            )
        self._evaluated = True
        loss = None
        if self._closure is not None:
            with torch.enable_grad():
                loss = self._closure()
        for push in self._pushes:
            push(self._optimizer)
        return loss

    def check_evaluated(self) -> None:
        """Raise RuntimeError if the step has ignored the closure."""
        if not self._evaluated:
            raise RuntimeError(
                f"{type(self._optimizer).__name__} does not evaluate its closure: "
                "call its step() without one, after loss.backward()"
            )


def _closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The closure among the arguments of a step; the first argument is the optimizer."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


@functools.wraps(torch.optim.Optimizer.zero_grad)
def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    """Torch's ``zero_grad``, which does not look at a gradient before it drops it."""
    if not set_to_none or torch.autograd.profiler._is_profiler_enabled:
        torch.optim.Optimizer.zero_grad(self, set_to_none)
        return
    for parameter in parameters_of(self):
        parameter.grad = None


def _step_of(kind: type[torch.optim.Optimizer], known: list[nn.Parameter], push: Push) -> Callable[..., Any]:
    """`kind`'s ``step`` without torch's own part, unless hooks or a profiler follow the step.

    The gradients of all parameters in `known` are pushed first, so torch's own step has no work to do.
    Calling it would still cost as much time as a whole step of a small model.
    """

    @functools.wraps(kind.step)
    def step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        present = parameters_of(self)
        followed = (
            len(present) != len(known)
            or not all(map(operator.is_, present, known))
            or len(self._optimizer_step_pre_hooks) + len(_global_optimizer_pre_hooks) > 2
            or len(self._optimizer_step_post_hooks) > 1
            or _global_optimizer_post_hooks
            or torch.autograd.profiler._is_profiler_enabled
        )
        return kind.step(self, closure) if followed else ClosureWithPush(self, closure, push)()

    return step
