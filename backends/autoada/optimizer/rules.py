"""From `torch.optim` to the update rules that the parameter server applies."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import adaps
from adaps.optimizers import Optimizer as Rule

DEFAULT = adaps.Adagrad(lr=0.01)
"""Applied in the backward pass of a model without an optimizer."""
FOR_TABLES = "torch.optim.SGD, Adagrad, Adam, AdamW, SparseAdam or RMSprop"

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


class Unsupported(ValueError):
    """Raised for an optimizer without a rule in the server; the message names it."""


@dataclass(frozen=True)
class RuleGroup:
    """Parameters that share a rule."""

    rule: Rule | None
    """Rule of the server for the gradients. If there is none, the optimizer itself steps the parameters,
    with gradients that all workers share."""
    parameters: frozenset[int]
    """Identities of the parameters."""
    optimizer: torch.optim.Optimizer | None = None
    """Optimizer whose ``step()`` applies the rule, if there is one."""
    obstacle: str = ""
    """Optimizer or option for which the server has no rule, if there is one."""

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether the rule is for `parameter`."""
        return id(parameter) in self.parameters

    @property
    def server_rule(self) -> Rule:
        """The server's rule, of a group that has one."""
        assert self.rule is not None
        return self.rule

    @property
    def keeps_moments_without_gradient(self) -> bool:
        """Whether moments of rows without a gradient stay, where those of the user's optimizer decay."""
        if not isinstance(self.optimizer, torch.optim.Adam | torch.optim.AdamW) or self.rule is None:
            return False
        return isinstance(self.rule, adaps.AdamW) or not self.rule.rule().moves_idle_rows


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The parameters in all groups of an optimizer."""
    groups = getattr(optimizer, "param_groups", [])  # An optimizer that is being created has no groups yet.
    return [parameter for group in groups for parameter in group["params"]]


def listed(optimizer: Optimizers | Rule | None) -> list[torch.optim.Optimizer]:
    """The optimizers as a list, which may be empty."""
    if optimizer is None or isinstance(optimizer, Rule):
        return []
    return list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]


def rule_groups(optimizer: Optimizers | Rule | None, names: Mapping[int, str]) -> list[RuleGroup]:
    """The server's rules for the optimizers, one for each of their parameter groups.

    `names` are the names of the model's parameters, by their identities.

    Raises
    ------
    ValueError
        If two optimizers hold the same parameter of the model.
    """
    if optimizer is None or isinstance(optimizer, Rule):
        return [RuleGroup(optimizer or DEFAULT, frozenset(names))]
    optimizers = listed(optimizer)
    if not optimizers:
        raise ValueError(
            "AdaModel was given a list of no optimizers: give it one, or None to train with a default"
        )
    holders: dict[str, torch.optim.Optimizer] = {}
    for each in optimizers:
        for name in [names[id(p)] for p in parameters_of(each) if id(p) in names]:
            if (other := holders.setdefault(name, each)) is not each:
                one, two = sorted([type(other).__name__, type(each).__name__])
                raise ValueError(
                    f"{one} and {two} both hold the parameter {name!r}: pass the one that trains the model, "
                    "AdaModel(model, optimizer)"
                )
    return [_group_of(each, options) for each in optimizers for options in each.param_groups]


def rule_of(optimizer: torch.optim.Optimizer, options: dict[str, Any]) -> Rule:
    """The server's rule for one of an optimizer's groups; Unsupported if there is none."""
    name = type(optimizer).__name__
    if type(optimizer) not in _RULES:
        raise Unsupported(name)
    for option, neutral in _NEUTRAL.items():
        if options.get(option, neutral) != neutral:
            raise Unsupported(f"{name} with {option}={options[option]!r}")
    kind, shared = _RULES[type(optimizer)]
    if kind is adaps.Adam and options.get("decoupled_weight_decay"):
        kind = adaps.AdamW
    return kind(**{_RENAMED.get(option, option): _plain(option, options[option]) for option in shared})


def rule_of_defaults(groups: Sequence[RuleGroup]) -> Rule:
    """The rule of a group that a program adds to an optimizer without options of its own.

    That is the first optimizer with such a rule.
    """
    for optimizer in dict.fromkeys(group.optimizer for group in groups):
        if optimizer is not None:
            with contextlib.suppress(Unsupported):
                return rule_of(optimizer, optimizer.defaults)
    return adaps.SGD()


def state_names(rule: Rule) -> tuple[str, ...]:
    """Names in `torch.optim` of the parts of a row's optimizer state, in the order of the server."""
    if isinstance(rule, adaps.SGD):
        return ("momentum_buffer",) if rule.momentum else ()
    if isinstance(rule, adaps.Adagrad):
        return ("sum",)
    if isinstance(rule, adaps.RMSprop):
        momentum = ("momentum_buffer",) if rule.momentum else ()
        return ("square_avg", *momentum, *(("grad_avg",) if rule.centered else ()))
    return () if isinstance(rule, adaps.RowAdagrad) else ("exp_avg", "exp_avg_sq")


STEP_NUMBERS = 1 << 24
"""The server keeps step numbers of rows modulo this number, as floats."""


def initial_value(rule: Rule) -> float:
    """The value of each part of a row's optimizer state before its first gradient."""
    return rule.initial_accumulator if isinstance(rule, adaps.Adagrad) else 0.0


def initial_states(rule: Rule, rows: int, length: int, width: int, steps: int) -> Tensor:
    """States of rows without a gradient that have missed none of `steps` steps, (rows, width)."""
    states = torch.full((rows, width), initial_value(rule), dtype=torch.float32, device="cpu")
    states[:, len(state_names(rule)) * length :] = float(1 + (steps - 1) % STEP_NUMBERS) if steps > 0 else 0.0
    return states


def has_step(rule: Rule) -> bool:
    """Whether the state of a parameter in `torch.optim` has the number of its steps."""
    return not isinstance(rule, adaps.SGD)


def check_state(name: str, shape: torch.Size, state: Mapping[str, Any], rule: Rule) -> None:
    """Raise ValueError if the server, with this rule, has no place for the state of the parameter `name`."""
    places = ("step", *state_names(rule)) if has_step(rule) else state_names(rule)
    for part, value in state.items():
        if value is None or (part == "step" and part in places):
            continue
        if part not in places:
            raise ValueError(
                f"the optimizer's state has {part!r} of the parameter {name!r}: the parameter server trains "
                f"it with {type(rule).__name__}, which has no place for it. Remove it from the state, or "
                f"train with its options; the server keeps {', '.join(places) or 'nothing'}"
            )
        if value.shape != shape:
            raise ValueError(
                f"{part!r} of the parameter {name!r} in the optimizer's state has the shape "
                f"{tuple(value.shape)}; the parameter has {tuple(shape)}"
            )
        if value.is_meta and state.get("step", 1) > 0:
            raise ValueError(
                f"{part!r} of the parameter {name!r} in the optimizer's state is on the meta device and has "
                "no values: load the state after AdaModel has wrapped the model"
            )


def _group_of(optimizer: torch.optim.Optimizer, options: dict[str, Any]) -> RuleGroup:
    parameters = frozenset(map(id, options["params"]))
    try:
        return RuleGroup(rule_of(optimizer, options), parameters, optimizer)
    except Unsupported as obstacle:
        return RuleGroup(None, parameters, optimizer, str(obstacle))


_DECAYED = ("lr", "weight_decay", "eps")
_RULES: dict[type[torch.optim.Optimizer], tuple[type[Rule], tuple[str, ...]]] = {
    torch.optim.SGD: (adaps.SGD, ("lr", "weight_decay", "momentum", "nesterov")),
    torch.optim.Adagrad: (adaps.Adagrad, (*_DECAYED, "initial_accumulator_value")),
    torch.optim.Adam: (adaps.Adam, (*_DECAYED, "betas")),
    torch.optim.AdamW: (adaps.AdamW, (*_DECAYED, "betas")),
    torch.optim.SparseAdam: (adaps.SparseAdam, ("lr", "eps", "betas")),
    torch.optim.RMSprop: (adaps.RMSprop, (*_DECAYED, "alpha", "momentum", "centered")),
}
"""The server's rule for each optimizer, and the options that both have."""
_RENAMED = {"initial_accumulator_value": "initial_accumulator"}
"""Names of options in the server's rules where they differ from those of torch.optim."""
_NEUTRAL: dict[str, Any] = {
    "lr_decay": 0,
    "dampening": 0,
    "amsgrad": False,
    "maximize": False,
    "differentiable": False,
}
"""Options that the server's rules do not have, and the values that switch them off."""


def _plain(option: str, value: Any) -> Any:
    """The value of an option as the server's rules take it: numbers can be tensors in torch.optim."""
    if option in ("nesterov", "centered"):
        return bool(value)
    return tuple(map(float, value)) if option == "betas" else float(value)
