"""One training step of a wrapped model, and the optimizer's part in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from autoada.access.binding import Recording

NO_REPLAY: AbstractContextManager[None] = nullcontext()


class CallListener(Protocol):
    """Follows the calls of a model in training mode."""

    @property
    def recording(self) -> Recording | None:
        """What follows the loop between calls."""
        ...

    def called(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The method or module `target`, a dotted name, or the model itself is about to run."""
        ...

    def left(self, output: Any, counts: bool) -> None:
        """It is over; was it a call of the model, which reads rows, or a mere helper?"""
        ...


@dataclass
class Step:
    """What changes from step to step; apart, because an nn.Module is slow at setting attributes.

    Attributes
    ----------
    stale : bool
        Whether gradients were pushed since the dense parameters were pulled.
    calls, expected_calls : int
        Calls of the model so far, and those that the batch was expected to need.
    first_target : str
        What the first of them called: a dotted name, empty for the model itself.
    push_queued : bool
        Whether the end of the backward pass will push.
    replay : context manager
        Lets the expected calls draw the random numbers that the prediction drew.
    listener : CallListener or None
        Who is told about calls.
    end_turn : callable or None
        Ends the use of the batch that a loader handed out last, on behalf of the loader that it is given.
    loaders : set of object
        Whose batches are used at this clock.
    data_began : bool
        Whether any batch was used.
    loaders_shared : int
        Loaders so far whose data all workers share.
    """

    stale: bool = False
    calls: int = 0
    expected_calls: int = 1
    first_target: str = ""
    push_queued: bool = False
    replay: AbstractContextManager[Any] = NO_REPLAY
    listener: CallListener | None = None
    end_turn: Callable[[object], None] | None = None
    loaders: set[object] = field(default_factory=set)
    data_began: bool = False
    loaders_shared: int = 0


def push_at_step(
    optimizer: torch.optim.Optimizer,
    steps_itself: Callable[[nn.Parameter], bool],
    push: Callable[[torch.optim.Optimizer], None],
) -> None:
    """Let ``optimizer.step()`` push; torch's own step then finds no gradient and does nothing.

    Parameters for which ``steps_itself(parameter)`` holds are still the optimizer's own.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not steps_itself(parameter):
                optimizer.state.pop(parameter, None)  # the state is the server's now

    def before_step(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:  # the first one is the optimizer
            raise ValueError(
                "optimizer.step() takes no closure on the parameter server: call it after loss.backward()"
            )
        push(optimizer)

    optimizer.register_step_pre_hook(before_step)
