"""Settings of policies that the server does not execute, or that only the training code executes.

A policy with such settings is refused; they are never ignored.
"""

from __future__ import annotations

from adaps.policy.document import Policy
from adaps.policy.fields import EXCHANGE_AUTO
from adaps.policy.model_parameters import Catalogue
from adaps.policy.rule import Rule
from adaps.policy.sections import MEAN, SHARES_BY_SPEED, SHARES_EQUAL

__all__ = ["left_to_training", "not_executed"]


def left_to_training(policy: Policy, catalogue: Catalogue) -> list[str]:
    """Return a message for each setting that a node ignores, because only training code executes it.

    Parameters
    ----------
    policy : Policy
        Policy that fits the catalogue.
    catalogue : Catalogue
        Parameters that the policy manages.
    """
    numbers = sorted({part.rule for managed in policy.managed(catalogue) for part in managed.parts})
    found = [
        f"rule {number}: lookahead is executed by the code that signals intent, not by a node; give the "
        f"policy to autoada"
        for number in numbers
        if policy.rules[number - 1].lookahead is not None
    ]
    if policy.synchronization.every:
        found.append(
            f"[synchronization]: every = {policy.synchronization.every} is executed by the training code, "
            f"not by a node; give the policy to autoada"
        )
    if policy.data.numbers:
        found.append(
            f"[data]: shares = {policy.data.text()} is executed by the training code, which weights "
            f"gradients by them; give the policy to autoada"
        )
    return found


_PLAIN = Rule("*")
_ALIKE = ("technique", "home", "lookahead", "exchange", "wire")
"""Fields that must be equal for all rows of a dense parameter."""


def not_executed(policy: Policy, catalogue: Catalogue) -> list[str]:
    """Return a message for each setting that neither `autoada` nor the server executes.

    Parameters
    ----------
    policy : Policy
        Policy that fits the catalogue.
    catalogue : Catalogue
        Parameters that the policy manages.
    """
    found = []
    numbers: dict[int, str] = {}
    for managed in policy.managed(catalogue):
        name = managed.parameter.name
        for part in managed.parts:
            numbers.setdefault(part.rule, name)
        if managed.parameter.kind == "dense":
            rules = [policy.rules[part.rule - 1] for part in managed.parts]
            which = " and ".join(str(part.rule) for part in managed.parts)
            found += [
                f"rules {which} give rows of {name} different {field}s, but a dense parameter is managed "
                f"as a whole: give all of its rows one rule"
                for field in _ALIKE
                if len({getattr(rule, field) for rule in rules}) > 1
            ]
    found += _homes_not_executed(policy, catalogue)
    for number in sorted(numbers):
        rule = policy.rules[number - 1]
        if rule.technique == "allreduce":
            found += [
                f"rule {number}: {field} of {numbers[number]} has no effect with technique 'allreduce': "
                f"every node has a copy and the server sends nothing; leave it out"
                for field in ("home", "wire", "lookahead", "exchange")
                if getattr(rule, field) != getattr(_PLAIN, field)
            ]
        if rule.technique == "full_replication" and rule.memory is not None:
            found.append(
                f"rule {number}: memory of {numbers[number]} has no effect with technique "
                "'full_replication': every node has a copy of each row, and only rows without copies can be "
                "in files; leave it out"
            )
        if rule.exchange != EXCHANGE_AUTO and rule.technique in ("static", "relocation"):
            found.append(
                f"rule {number}: exchange of {numbers[number]} has no effect with technique "
                f"{rule.technique!r}, which makes no copies; leave it 'auto'"
            )
    if policy.data.shares == SHARES_BY_SPEED:
        found.append(
            f"[data]: shares = {SHARES_BY_SPEED!r} needs the speed of each node: `adabench policy build FILE "
            "--resources …` replaces it by numbers"
        )
    aggregation = policy.synchronization.aggregation
    if aggregation.rule != MEAN and policy.data.numbers:
        found.append(
            f"[synchronization]: aggregation {aggregation.rule!r} gives every worker the same weight, but "
            f"[data] shares = {policy.data.text()}; leave them {SHARES_EQUAL!r}"
        )
    return found


def _homes_not_executed(policy: Policy, catalogue: Catalogue) -> list[str]:
    """Return a message for each home that refers to a parameter that is not a table."""
    by_name = {managed.parameter.name: managed for managed in policy.managed(catalogue)}
    found = []
    for name, managed in by_name.items():
        for part in managed.parts:
            table = policy.rules[part.rule - 1].home.table
            if table is None:
                continue
            dense = [one for one in (name, table) if by_name[one].parameter.kind == "dense"]
            if dense:
                found.append(
                    f"rule {part.rule}: home of {name} is with {table}, but {dense[0]} is a dense "
                    f"parameter: only tables can have the homes of another table"
                )
    return found
