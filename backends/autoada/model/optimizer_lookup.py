"""Search for optimizers that hold a model's parameters but were not passed to `AdaModel`."""

from __future__ import annotations

import gc
import logging
import operator
import weakref
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from adaps.optimizers import Optimizer as Rule
from autoada.optimizer.rules import DEFAULT, FOR_TABLES, Optimizers, parameters_of
from autoada.parameters.table_parameter import TableParameter

_log = logging.getLogger("autoada.optimizer.rules")
_handed_over: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_in_server: dict[int, weakref.ref[nn.Parameter]] = {}
"""Parameters with memory that are in the server, by their identities."""
_warned: set[str] = set()


def find_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the existing optimizers that hold some of the model's parameters.

    Raises
    ------
    ValueError
        If several hold the same parameter.
    """
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    if not (found := _holders(own)):
        return []
    gc.collect()  # An optimizer without references does not count.
    found = _holders(own)
    owners: dict[int, torch.optim.Optimizer] = {}
    for optimizer in found:
        for parameter in parameters_of(optimizer):
            other = owners.setdefault(id(parameter), optimizer)
            if other is not optimizer and id(parameter) in own:
                one, two = sorted([type(other).__name__, type(optimizer).__name__])
                raise ValueError(
                    f"{one} and {two} both hold the parameter {own[id(parameter)]!r}: pass the one that "
                    "trains the model, AdaModel(model, optimizer)"
                )
    return found


def optimizers_of(model: nn.Module, given: Optimizers | Rule | None) -> Optimizers | Rule | None:
    """Return the given optimizers, or else those of the model's parameters; None if there are none."""
    if given is not None:
        return given
    return find_optimizers(model) or None


def warn_of_differences(
    model: nn.Module, optimizer: Optimizers | Rule | None, keep_moments_without_gradient: Iterable[str]
) -> None:
    """Warn once about each difference to training without the parameter server.

    `keep_moments_without_gradient` names the optimizers whose moments change with gradients alone.
    """
    if optimizer is None:
        _warn_once(
            "AdaModel found no optimizer of the model's parameters: every backward pass ends with a step of "
            f"Adagrad with learning rate {DEFAULT.lr:g}. Create an optimizer first and pass it, "
            f"AdaModel(model, optimizer), or use AdaModel(model, adaps.Adagrad(lr={DEFAULT.lr:g}))."
        )
    for name in sorted(set(keep_moments_without_gradient)):
        _warn_once(
            f"tables with {name} train as with torch.optim.SparseAdam: a row and its moments change only in "
            "steps that use the row. With SGD, Adagrad and RMSprop, one node trains tables as PyTorch does."
        )
    for dtype in sorted({str(parameter.dtype) for parameter in model.parameters()} - {"torch.float32"}):
        _warn_once(
            f"parameters of the model are {dtype}: the parameter server keeps them and their optimizer's "
            f"state as float32, and the model reads them as {dtype}."
        )


def _warn_once(sentence: str) -> None:
    if sentence not in _warned:
        _warned.add(sentence)
        _log.warning(sentence)


def register(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Record that the parameters of `model` are in the server and belong to these optimizers."""
    _handed_over.update(optimizers)
    for parameter in model.parameters():
        if not isinstance(parameter, TableParameter):
            _in_server[id(parameter)] = weakref.ref(parameter)


def release(model: nn.Module) -> None:
    """Record that the parameters of `model` with memory are no longer in the server."""
    for parameter in model.parameters():
        if not isinstance(parameter, TableParameter):
            _in_server.pop(id(parameter), None)


def _holders(own: dict[int, str]) -> list[torch.optim.Optimizer]:
    """Return the optimizers of parameters with these names, in an order that all nodes share."""
    places = {number: place for place, number in enumerate(own)}
    found = [
        (min(held), each)
        for each in gc.get_objects()
        if issubclass(type(each), torch.optim.Optimizer)
        and (held := [places[id(parameter)] for parameter in parameters_of(each) if id(parameter) in own])
    ]
    return [each for _, each in sorted(found, key=operator.itemgetter(0))]


def _refuse_strangers(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    if optimizer in _handed_over:
        return
    for parameter in parameters_of(optimizer):
        known = _in_server.get(id(parameter))
        if type(parameter) is TableParameter or (known is not None and known() is parameter):
            raise RuntimeError(
                f"this {type(optimizer).__name__} was not passed to AdaModel, but its parameters are in the "
                "parameter server: create it before the model is wrapped and pass it, "
                f"AdaModel(model, optimizer); tables train with {FOR_TABLES}"
            )


register_optimizer_step_pre_hook(_refuse_strangers)
