"""Moves the state of optimizers into the parameter server and back."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from autoada.optimizer.rules import parameters_of
from autoada.parameters.parameter_state import ParameterState
from autoada.parameters.server_access import ServerAccess


class OptimizerStates:
    """Keeps the state of optimizers in the server, together with their parameters.

    ``optimizer.state_dict()`` gathers the state in PyTorch's own layout, and ``optimizer.load_state_dict()``
    replaces it. It cannot be replaced after the first step if messages between nodes round rows (`rounds`).
    """

    def __init__(
        self, parameters: Mapping[int, ParameterState], access: ServerAccess, rounds: bool = False
    ) -> None:
        self._parameters = parameters
        self._access = access
        self._rounds = rounds

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an optimizer read its state from the server and replace it there."""

        def gather(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
            for number, state in self._numbered(optimizer, state_dict):
                if read := state.read():
                    state_dict["state"][number] = read

        def check(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
            for number, state in self._numbered(optimizer, state_dict):
                state.check(state_dict["state"].get(number, {}))

        optimizer.register_state_dict_post_hook(gather, prepend=True)
        optimizer.register_load_state_dict_pre_hook(check)
        optimizer.register_load_state_dict_post_hook(self.take_over, prepend=True)

    def take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Collective: replace the state in the server by the current state of the optimizer.

        All workers get the state of the primary worker.
        """
        held = [self._parameters[id(p)] for p in parameters_of(optimizer) if id(p) in self._parameters]
        given = {state: optimizer.state.get(state.parameter, {}) for state in held}
        for state, values in given.items():
            state.check(values)
            if self._rounds and state.steps > 0:
                raise ValueError(
                    f"the optimizer's state of {state.name!r} cannot be replaced after a step, because "
                    "messages round rows, and other nodes still hold rounding errors of the old state: load "
                    'the state before the first step, or use wire = "float32"'
                )
        own = {p: state for p, state in optimizer.state.items() if id(p) not in self._parameters}
        worker = self._access.worker
        worker.end_setup()  # All workers have pushed their earlier gradients into the replaced rows.
        counts = [state.steps_of(values) for state, values in given.items()]
        counts = self._counts_of_primary(optimizer, counts, own)
        if self._access.is_primary:
            for (state, values), count in zip(given.items(), counts, strict=True):
                state.settle()
                if count > 0 or state.steps > 0 or not state.is_initial(values):
                    state.write(values, count)
        worker.end_setup()
        for state, count in zip(given, counts, strict=True):
            state.steps = count
        optimizer.state = ServerHeldState(self._parameters, own)

    def _counts_of_primary(
        self, optimizer: torch.optim.Optimizer, counts: list[int], own: Mapping[Tensor, Any]
    ) -> list[int]:
        """Collective: return the primary worker's step counts.

        Raises ValueError if this worker has another state of the parameters that the optimizer itself steps,
        as far as their names, shapes and numbers show.
        """
        if self._access.alone:
            return counts
        node, name = self._access.node, "steps of an optimizer's state"
        outline = repr(
            [
                [number, key, _outlined(value)]
                for number, parameter in enumerate(parameters_of(optimizer))
                for key, value in sorted(own.get(parameter, {}).items())
            ]
        )
        if self._access.is_primary:
            node.post(name, json.dumps([counts, outline]))
        self._access.worker.barrier()
        text = node.posted(name)
        assert text is not None  # The primary worker has posted it before the barrier.
        result: list[int]
        result, expected = json.loads(text)
        if outline != expected:
            raise ValueError(
                f"{type(optimizer).__name__} steps some parameters on each worker, and its state of them "
                "differs from that of the primary worker: load the same state on all workers"
            )
        return result

    def _numbered(
        self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
    ) -> Iterator[tuple[int, ParameterState]]:
        """Return the parameters in the server with their numbers in a state dictionary."""
        for group, packed in zip(optimizer.param_groups, state_dict["param_groups"], strict=False):
            for parameter, number in zip(group["params"], packed["params"], strict=False):
                if (state := self._parameters.get(id(parameter))) is not None:
                    yield number, state


def _outlined(value: Any) -> Any:
    """Return a number of an optimizer's state, or the shape of a larger tensor."""
    if not isinstance(value, Tensor):
        return value
    return value.item() if value.numel() == 1 else list(value.shape)


class ServerHeldState(defaultdict[Any, Any]):
    """The ``state`` of an optimizer, which refuses access to the entries of parameters in the server."""

    def __init__(self, in_server: Mapping[int, ParameterState], own: Mapping[Tensor, Any]) -> None:
        super().__init__(dict, own)
        self._in_server = in_server


def _guarded(name: str) -> Callable[..., Any]:
    """A method of `dict` for the parameters that the optimizer itself steps.

    A method without a key is refused, because it would miss the entries in the server.
    """
    method = getattr(defaultdict, name)

    @functools.wraps(method)
    def call(self: ServerHeldState, *args: Any) -> Any:
        state = self._in_server.get(id(args[0])) if name in _BY_KEY else None
        if name in _BY_KEY and state is None:
            return method(self, *args)
        parameters = "some parameters" if state is None else repr(state.name)
        raise RuntimeError(
            f"optimizer.state has no entry of {parameters}: the state is in the parameter server. Read it by "
            "optimizer.state_dict(), and replace it by optimizer.load_state_dict()"
        )

    return call


_BY_KEY = {"__missing__", "__contains__", "__setitem__", "__delitem__", "get", "pop", "setdefault"}
# `__getitem__` calls `__missing__`, and torch gathers a state dictionary from `items`.
_UNCHANGED = {"__getitem__", "items", "fromkeys", "default_factory", "__repr__", "__sizeof__", "__doc__"}
_UNCHANGED |= {"__new__", "__init__", "__getattribute__", "__class_getitem__", "__hash__"}

for _name in (vars(dict).keys() | vars(defaultdict).keys()) - _UNCHANGED:
    setattr(ServerHeldState, _name, _guarded(_name))
