"""Lets ``optimizer.step()`` hand gradients to the parameter server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from autoada.model.wrapped_parameters import WrappedParameters
from autoada.optimizer.rules import parameters_of
from autoada.parameters.table_gradients import raw_gradient, set_raw_gradient
from autoada.parameters.table_parameter import TableParameter

Push = Callable[[torch.optim.Optimizer], None]


def push_at_step(optimizer: torch.optim.Optimizer, wrapped: WrappedParameters, push: Push) -> None:
    """Let ``optimizer.step()`` push the gradients of a wrapped model's parameters.

    Torch's own step then finds no gradient of the parameters that the server steps. The push may replace the
    gradients of the others for the step. After the step, also after one that fails, all parameters have the
    gradients from before it, as in PyTorch, where `zero_grad` drops them.
    """
    hidden: list[tuple[Any, torch.Tensor | None]] = []

    def push_and_hide(_: torch.optim.Optimizer) -> None:
        hidden[:] = [
            (parameter, raw_gradient(parameter))
            for parameter in parameters_of(optimizer)
            if wrapped.holds(parameter)
        ]
        push(optimizer)
        for parameter, _gradient in hidden:
            if wrapped.steps(parameter):
                set_raw_gradient(parameter, None)

    def restore() -> None:
        for parameter, gradient in hidden:
            set_raw_gradient(parameter, gradient)
        hidden.clear()

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
        restore()
        closure = _closure_of(args, kwargs)
        if isinstance(closure, ClosureWithPush):
            closure.check_evaluated()

    optimizer.register_step_pre_hook(before_step)
    after = optimizer.register_step_post_hook(after_step)
    hooks: Any = optimizer._optimizer_step_post_hooks  # an ordered dictionary
    hooks.move_to_end(after.id, last=False)  # Other hooks see the gradients.
    # A GradScaler then unscales the gradients itself before the step, and leaves a step with inf or NaN out.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    # A profiler with Python frames reads the optimizer's state at calls of Optimizer's function of this name.
    optimizer._optimizer_step_code = _without_work  # type: ignore[method-assign]
    present: Any = optimizer.step  # a function if a scheduler watches it, and a method otherwise
    is_method = isinstance(present, MethodType)
    given = present.__func__ if is_method else present

    # Compilation would read the optimizer's state.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @functools.wraps(given)
    def step(*args: Any, **kwargs: Any) -> Any:
        try:
            if given is not kind.step or not _only_pushes(args[0], wrapped):
                return given(*args, **kwargs)
            if (closure := _closure_of(args, kwargs)) is not None:
                return ClosureWithPush(args[0], closure, push)()
            push(args[0])
        finally:  # Hooks that follow a step are not called if it fails.
            if hidden:
                restore()

    optimizer.step = MethodType(step, optimizer) if is_method else step  # type: ignore[method-assign]
    if kind.zero_grad is torch.optim.Optimizer.zero_grad and "zero_grad" not in vars(optimizer):
        optimizer.zero_grad = MethodType(torch.compiler.disable(_zero_grad), optimizer)  # type: ignore[method-assign]


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
        """Evaluate the user's closure, push the gradients, and return the loss."""
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
    with torch._C.DisableTorchFunctionSubclass():
        for group in self.param_groups:
            for parameter in group["params"]:
                if type(parameter) is TableParameter:
                    parameter.has_dense_part = False
                    set_raw_gradient(parameter, None)
                else:
                    parameter.grad = None


def _without_work() -> None:
    """Do nothing."""


def _only_pushes(optimizer: torch.optim.Optimizer, wrapped: WrappedParameters) -> bool:
    """Whether torch's own part of a step has no work, and neither hooks nor a profiler follow the step.

    It would then find no gradient, and still cost as much time as a whole step of a small model.
    """
    return not (
        len(optimizer._optimizer_step_pre_hooks) + len(_global_optimizer_pre_hooks) > 2
        or len(optimizer._optimizer_step_post_hooks) > 1
        or _global_optimizer_post_hooks
        or torch.autograd.profiler._is_profiler_enabled
        or not wrapped.owned_by(optimizer).steps_all
    )
