"""From `torch.optim` to the update rules that the parameter server applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import adaps

DEFAULT = adaps.Adagrad(lr=0.01)
"""Applied in the backward pass where no optimizer is given."""


@dataclass(frozen=True)
class RuleGroup:
    """Parameters that share a rule.

    Attributes
    ----------
    rule : adaps.SGD, adaps.Adagrad, adaps.Adam or adaps.SparseAdam
        What the server does with their gradients.
    parameters : frozenset of int
        Their identities; None stands for all parameters.
    options : dict
        The optimizer's own group, whose ``lr`` a scheduler changes.
    optimizer : torch.optim.Optimizer or None
        Whose ``step()`` applies the rule; None if nobody's does.
    """

    rule: Any
    parameters: frozenset[int] | None
    options: dict[str, Any]
    optimizer: torch.optim.Optimizer | None = None

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether the rule is for `parameter`."""
        return self.parameters is None or id(parameter) in self.parameters


Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


def listed(optimizer: Optimizers | None) -> list[torch.optim.Optimizer]:
    """The optimizers, of which there may be none."""
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]


def rule_groups(optimizer: Optimizers | None) -> list[RuleGroup]:
    """The server's rules for the optimizers, one for each of their parameter groups.

    Raises
    ------
    ValueError
        If the server has no such rule; names the reason and the optimizers that can be used.
    """
    if optimizer is None:
        return [RuleGroup(DEFAULT, None, {"lr": DEFAULT.lr})]
    return [group for each in listed(optimizer) for group in _groups_of(each)]


def _groups_of(optimizer: torch.optim.Optimizer) -> list[RuleGroup]:
    convert = _RULES.get(type(optimizer))
    if convert is None:
        raise ValueError(f"{type(optimizer).__name__} has no rule in the parameter server: use {_USABLE}")
    groups = []
    for options in optimizer.param_groups:
        for name, neutral in _NEUTRAL.items():
            if options.get(name, neutral) != neutral:
                raise ValueError(
                    f"{type(optimizer).__name__} with {name}={options[name]!r} has no rule in the "
                    f"parameter server: set {name}={neutral!r} or use {_USABLE}"
                )
        parameters = frozenset(map(id, options["params"]))
        groups.append(RuleGroup(convert(options), parameters, options, optimizer))
    return groups


def _sgd(options: dict[str, Any]) -> adaps.SGD:
    return adaps.SGD(lr=float(options["lr"]), momentum=float(options["momentum"]))


def _adagrad(options: dict[str, Any]) -> adaps.Adagrad:
    return adaps.Adagrad(
        lr=float(options["lr"]),
        eps=options["eps"],
        initial_accumulator=options["initial_accumulator_value"],
    )


def _adam(options: dict[str, Any]) -> adaps.Adam:
    beta1, beta2 = options["betas"]
    return adaps.Adam(lr=float(options["lr"]), betas=(float(beta1), float(beta2)), eps=options["eps"])


def _sparse_adam(options: dict[str, Any]) -> adaps.SparseAdam:
    beta1, beta2 = options["betas"]
    return adaps.SparseAdam(lr=float(options["lr"]), betas=(float(beta1), float(beta2)), eps=options["eps"])


_RULES: dict[type[torch.optim.Optimizer], Callable[[dict[str, Any]], Any]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.Adam: _adam,
    torch.optim.SparseAdam: _sparse_adam,
}
_USABLE = "torch.optim.SGD (with or without momentum), Adagrad, Adam or SparseAdam, without weight decay"
_NEUTRAL: dict[str, Any] = {
    "weight_decay": 0,
    "lr_decay": 0,
    "dampening": 0,
    "nesterov": False,
    "amsgrad": False,
    "maximize": False,
}
