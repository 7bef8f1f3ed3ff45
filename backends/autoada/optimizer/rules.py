"""From `torch.optim` to the update rules that the parameter server applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import adaps
from adaps.optimizers import Optimizer as Rule

DEFAULT = adaps.Adagrad(lr=0.01)
"""Applied in the backward pass where nobody says what to train with."""
FOR_TABLES = "torch.optim.SGD, Adagrad, Adam, AdamW, SparseAdam or RMSprop"

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


class Unsupported(ValueError):
    """An optimizer of which the server has no rule; says what it is."""


@dataclass(frozen=True)
class RuleGroup:
    """Parameters that share a rule.

    Attributes
    ----------
    rule : adaps.SGD, Adagrad, RowAdagrad, Adam, AdamW, SparseAdam, RMSprop, or None
        What the server does with their gradients; None where it has no such rule. Then parameters that are no
        tables are changed by the optimizer itself, on gradients that all workers share.
    parameters : frozenset of int
        Their identities; None stands for all parameters.
    options : dict
        The optimizer's own group, which a scheduler changes.
    optimizer : torch.optim.Optimizer or None
        Whose ``step()`` applies the rule; None if nobody's does.
    obstacle : str
        What the server has no rule for, if it has none.
    """

    rule: Rule | None
    parameters: frozenset[int] | None
    options: dict[str, Any]
    optimizer: torch.optim.Optimizer | None = None
    obstacle: str = ""

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether the rule is for `parameter`."""
        return self.parameters is None or id(parameter) in self.parameters

    def rule_of(self, table: str) -> Rule:
        """The rule, for a table; ValueError if the server has none."""
        if self.rule is None:
            raise ValueError(
                f"the table {table!r} cannot train with {self.obstacle}, which is no rule of the parameter "
                f"server: give tables {FOR_TABLES}, in an optimizer of their own if need be"
            )
        return self.rule

    @property
    def keeps_moments_without_gradient(self) -> bool:
        """Whether moments of rows without a gradient stay, where those of the user's optimizer decay."""
        if not isinstance(self.optimizer, torch.optim.Adam | torch.optim.AdamW) or self.rule is None:
            return False
        return isinstance(self.rule, adaps.AdamW) or not self.rule.rule().moves_idle_rows

    def present_rule(self) -> Rule:
        """The rule with the options that the optimizer has now.

        Raises
        ------
        Unsupported
            If they have become something else.
        """
        if self.optimizer is None:
            assert self.rule is not None
            return self.rule
        return rule_of(self.optimizer, self.options)


def listed(optimizer: Optimizers | Rule | None) -> list[torch.optim.Optimizer]:
    """The optimizers, of which there may be none."""
    if optimizer is None or isinstance(optimizer, Rule):
        return []
    return list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]


def rule_groups(optimizer: Optimizers | Rule | None) -> list[RuleGroup]:
    """The server's rules for the optimizers, one for each of their parameter groups."""
    if optimizer is None or isinstance(optimizer, Rule):
        return [RuleGroup(optimizer or DEFAULT, None, {})]
    return [group for each in listed(optimizer) for group in _groups_of(each)]


def rule_of(optimizer: torch.optim.Optimizer, options: dict[str, Any]) -> Rule:
    """The server's rule for one of an optimizer's groups; Unsupported if there is none."""
    name = type(optimizer).__name__
    convert = _RULES.get(type(optimizer))
    if convert is None:
        raise Unsupported(name)
    for option, neutral in _NEUTRAL.items():
        if options.get(option, neutral) != neutral:
            raise Unsupported(f"{name} with {option}={options[option]!r}")
    return convert(options)


def _groups_of(optimizer: torch.optim.Optimizer) -> list[RuleGroup]:
    groups = []
    for options in optimizer.param_groups:
        rule, obstacle = None, ""
        try:
            rule = rule_of(optimizer, options)
        except Unsupported as reason:
            obstacle = str(reason)
        groups.append(RuleGroup(rule, frozenset(map(id, options["params"])), options, optimizer, obstacle))
    return groups


def _sgd(options: dict[str, Any]) -> Rule:
    return adaps.SGD(
        lr=float(options["lr"]),
        momentum=float(options["momentum"]),
        weight_decay=float(options["weight_decay"]),
        nesterov=bool(options["nesterov"]),
    )


def _adagrad(options: dict[str, Any]) -> Rule:
    return adaps.Adagrad(
        lr=float(options["lr"]),
        eps=options["eps"],
        initial_accumulator=options["initial_accumulator_value"],
        weight_decay=float(options["weight_decay"]),
    )


def _betas(options: dict[str, Any]) -> tuple[float, float]:
    beta1, beta2 = options["betas"]
    return float(beta1), float(beta2)


def _adam(options: dict[str, Any]) -> Rule:
    kind = adaps.AdamW if options.get("decoupled_weight_decay") else adaps.Adam
    return kind(
        lr=float(options["lr"]),
        betas=_betas(options),
        eps=options["eps"],
        weight_decay=float(options["weight_decay"]),
    )


def _sparse_adam(options: dict[str, Any]) -> Rule:
    return adaps.SparseAdam(lr=float(options["lr"]), betas=_betas(options), eps=options["eps"])


def _rmsprop(options: dict[str, Any]) -> Rule:
    return adaps.RMSprop(
        lr=float(options["lr"]),
        alpha=float(options["alpha"]),
        eps=options["eps"],
        weight_decay=float(options["weight_decay"]),
        momentum=float(options["momentum"]),
        centered=bool(options["centered"]),
    )


def _adamw(options: dict[str, Any]) -> Rule:
    return _adam({**options, "decoupled_weight_decay": True})


_RULES: dict[type[torch.optim.Optimizer], Callable[[dict[str, Any]], Rule]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.SparseAdam: _sparse_adam,
    torch.optim.RMSprop: _rmsprop,
}
_NEUTRAL: dict[str, Any] = {"lr_decay": 0, "dampening": 0, "amsgrad": False, "maximize": False}
"""Options that the server's rules do not have, by what leaves them out."""
