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
from torch.utils.weak import WeakTensorKeyDictionary

from adaps.optimizers import Optimizer as Rule
from autoada.optimizer.rules import DEFAULT, FOR_TABLES, Optimizers, parameters_of
from autoada.parameters.table_parameter import TableParameter

_log = logging.getLogger("autoada.optimizer.rules")
_handed_over: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_in_server = WeakTensorKeyDictionary()
"""Parameters that are in the server, as keys."""
_warned: set[str] = set()


def optimizers_of(model: nn.Module, given: Optimizers | Rule | None) -> Optimizers | Rule | None:
    """Return the given optimizers, or else the existing ones that hold some of the model's parameters.

    The result is None if there are none.
    """
    if given is not None or not _holders(model):
        return given
    gc.collect()  # An optimizer without references does not count.
    return _holders(model) or None


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
        _in_server[parameter] = None


def release(model: nn.Module) -> None:
    """Record that the parameters of `model` with memory are no longer in the server."""
    for parameter in model.parameters():
        if not isinstance(parameter, TableParameter):
            _in_server.pop(parameter, None)


def _holders(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimizers of parameters of the model, in an order that all nodes share."""
    places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    found = [
        (min(held), each)
        for each in gc.get_objects()
        if issubclass(type(each), torch.optim.Optimizer)
        and (held := [places[id(parameter)] for parameter in parameters_of(each) if id(parameter) in places])
    ]
    return [each for _, each in sorted(found, key=operator.itemgetter(0))]


def _refuse_strangers(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    if optimizer not in _handed_over and any(each in _in_server for each in parameters_of(optimizer)):
        raise RuntimeError(
            f"this {type(optimizer).__name__} was not passed to AdaModel, but its parameters are in the "
            "parameter server: create it before the model is wrapped and pass it, "
            f"AdaModel(model, optimizer); tables train with {FOR_TABLES}"
        )


register_optimizer_step_pre_hook(_refuse_strangers)
