"""Schedules: changes of an optimizer's options, brought to the server's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from adaps import NodeTable
from autoada.optimizer.rules import rule_of

OPTIONS = ("momentum", "betas", "alpha", "weight_decay", "eps")
"""Options of a group that the server's rules have, in addition to the learning rate and the switches."""
SWITCHES = ("nesterov", "centered", "amsgrad", "maximize", "dampening", "lr_decay", "decoupled_weight_decay")

_NUMBERS = {float, int, bool}


class Schedules:
    """Follows the groups of an optimizer.

    Each group is found by its position: ``load_state_dict`` and programs replace the groups themselves.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, tables: Mapping[int, Sequence[NodeTable]]) -> None:
        self._optimizer = optimizer
        self._tables = tables
        self._options = itemgetter(
            "lr", *(name for name in (*OPTIONS, *SWITCHES) if name in optimizer.defaults)
        )
        self._seen: dict[int, tuple[Any, ...]] = {}

    def follow(self) -> None:
        """Hand options that have changed since the last call to the server.

        Raises
        ------
        ValueError
            If a table's rule cannot become the rule of its group.
        """
        groups = self._optimizer.param_groups
        for number, tables in self._tables.items():
            group = groups[number]
            now = tuple([each if type(each) in _NUMBERS else _plain(each) for each in self._options(group)])
            if now == self._seen.get(number):
                continue
            try:
                rule = rule_of(self._optimizer, group).rule()
                for table in tables:
                    table.set_hyperparameters(rule)
            except ValueError as reason:
                names = ", ".join(repr(table.name) for table in tables)
                raise ValueError(
                    f"the parameter server cannot train {names} with {reason}. The rule is the one that the "
                    "optimizer had when AdaModel wrapped the model; a parameter that was in no optimizer got "
                    "the optimizer's defaults. Wrap the model with the options that it needs"
                ) from None
            self._seen[number] = now


def _plain(value: Any) -> Any:
    """Return the value of an option with numbers for tensors, which equal themselves after a change."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value if value is None or type(value) in _NUMBERS else float(value)


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a group that a checkpoint keeps, as JSON values."""
    return {name: _plain(group[name]) for name in ("lr", *OPTIONS) if name in group}


def set_options(group: dict[str, Any], kept: Mapping[str, Any]) -> None:
    """Restore the options of a group from a checkpoint."""
    for name, value in kept.items():
        group[name] = tuple(value) if name == "betas" else value
