"""Schedules: changes of an optimizer's options, brought to the server's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from adaps import NodeTable
from autoada.optimizer.rules import RuleGroup, Unsupported

OPTIONS = ("momentum", "betas", "alpha", "weight_decay", "eps")
"""What the server's rules have of a group, beside the learning rate and what is on or off."""
SWITCHES = ("nesterov", "centered", "amsgrad", "maximize", "dampening", "lr_decay", "decoupled_weight_decay")


class Schedules:
    """Follows the groups of the optimizers.

    Parameters
    ----------
    groups : sequence of RuleGroup
        Groups of all optimizers. Only groups with a rule are followed.
    rules : mapping of str to int
        The number of its group, for each of the server's tables.
    tables : mapping of str to NodeTable
        The server's tables.
    """

    def __init__(
        self, groups: Sequence[RuleGroup], rules: Mapping[str, int], tables: Mapping[str, NodeTable]
    ) -> None:
        self._followed = [
            (group, _watcher(group), [tables[name] for name, number in rules.items() if number == i])
            for i, group in enumerate(groups)
            if group.rule is not None and group.optimizer is not None
        ]
        self._seen = [watch() for _, watch, _ in self._followed]

    def follow(self) -> None:
        """Hand options that have changed since the last call to the server.

        Raises
        ------
        ValueError
            If a rule cannot become what a group has now.
        """
        for i, (group, watch, tables) in enumerate(self._followed):
            now = watch()
            if now == self._seen[i]:
                continue
            try:
                rule = group.present_rule().rule()
                for table in tables:
                    table.set_hyperparameters(rule)
            except Unsupported as reason:
                raise ValueError(
                    f"the parameter server cannot go on as {reason}: it began as {group.rule}"
                ) from None
            self._seen[i] = now

    def restored(self) -> None:
        """The groups have got the options of a checkpoint, and the server its own: bring them together."""
        self._seen = [()] * len(self._seen)
        self.follow()

    @staticmethod
    def options_of(group: RuleGroup) -> dict[str, Any]:
        """Options of a group that a checkpoint keeps, as JSON values."""
        kept = {name: group.options[name] for name in OPTIONS if name in group.options}
        if "lr" in group.options:
            kept["lr"] = float(group.options["lr"])
        if "betas" in kept:
            kept["betas"] = [float(beta) for beta in kept["betas"]]
        return kept

    @staticmethod
    def set_options(group: RuleGroup, kept: Mapping[str, Any]) -> None:
        """Restore the options of a group from a checkpoint."""
        for name, value in kept.items():
            group.options[name] = tuple(value) if name == "betas" else value


def _watcher(group: RuleGroup) -> Callable[[], tuple[Any, ...]]:
    present = [name for name in (*OPTIONS, *SWITCHES) if name in group.options]
    get = itemgetter("lr", *present)

    def watch() -> tuple[Any, ...]:
        values: tuple[Any, ...] = get(group.options)
        return (float(values[0]), *values[1:])  # a tensor that is changed in place equals itself

    return watch
