"""The node of a model, managed as a policy for its parameters says of the tables in which they lie."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import nn

import adaps
import adaps.rendezvous
from adaps.optimizers import Optimizer
from adaps.policy import Catalogue, Home, Managed, PolicyError, RowSelection, Rule
from adaps.policy.executed import refuse_unexecuted
from autoada.adoption import optimizers_of
from autoada.layout import DenseLayout, Layout, layout_of
from autoada.optimizers import Optimizers

__all__ = ["Training", "check_policy", "create_node", "node_of", "server_policy", "training_of"]


@dataclass(frozen=True)
class Training:
    """What of a policy the training code carries out, and not the server.

    Attributes
    ----------
    every : int
        After so many steps all updates of all workers are visible to all; 0 leaves it to the server.
    lookaheads : mapping of str to int
        Batches that are announced ahead, by the qualified names of parameters for which the policy says it.
    """

    every: int = 0
    lookaheads: Mapping[str, int] = field(default_factory=dict)


_of_node: weakref.WeakKeyDictionary[adaps.Node, Training] = weakref.WeakKeyDictionary()


def create_node(
    model: nn.Module,
    optimizer: Optimizers | Optimizer | None = None,
    *,
    tables: Iterable[str] | None = None,
    policy: adaps.Policy | None = None,
    **options: Any,
) -> adaps.Node:
    """The node for `AdaModel`s of `model`, shared by this process's worker threads.

    Parameters
    ----------
    model, optimizer, tables
        As for `AdaModel`. Only shapes and rules are taken; the model is not changed.
    policy : adaps.Policy, optional
        How each parameter of the model is managed. Those that are no tables lie together in blocks, by
        optimizer and dtype: they can have homes of their own, and need the same technique and wire.
    **options
        Further arguments of `adaps.Node`, such as ``workers``.
    """
    layout = layout_of(model, optimizers_of(model, optimizer), tables)
    return node_of(model, layout, policy, **options)


def check_policy(
    model: nn.Module, optimizer: Optimizers | Optimizer | None, policy: adaps.Policy, nodes: int
) -> None:
    """Raise PolicyError for what `create_node` would refuse, on a cluster of so many nodes."""
    server_policy(model, layout_of(model, optimizers_of(model, optimizer), None), policy, nodes)


def node_of(model: nn.Module, layout: Layout, policy: adaps.Policy | None, **options: Any) -> adaps.Node:
    """The node for a model that lies so."""
    if policy is None:
        return adaps.Node(layout.server_tables(), **options)
    place = adaps.rendezvous.place_in_environment()
    managed = server_policy(model, layout, policy, 1 if place is None else place.world_size)
    node = adaps.Node(layout.server_tables(), policy=managed, **options)
    _of_node[node] = Training(policy.synchronization.every, _lookaheads(policy, _catalogue(model, layout)))
    return node


def training_of(node: adaps.Node) -> Training:
    """What the policy that a node was made with leaves to who trains."""
    return _of_node.get(node, Training())


def server_policy(model: nn.Module, layout: Layout, policy: adaps.Policy, nodes: int) -> adaps.Policy:
    """How the server manages its tables if `policy` says how the model's parameters are managed.

    Raises
    ------
    PolicyError
        If it does not fit, has something in it that the server does not execute, or manages parameters by
        different techniques, or with different wires, that lie in one table of blocks.
    """
    if not isinstance(policy, adaps.Policy):
        raise TypeError(f"policy is {policy!r}; it must be an adaps.Policy")
    catalogue = _catalogue(model, layout)
    policy.check(catalogue, nodes)
    refuse_unexecuted(policy, catalogue)
    managed = {one.parameter.name: one for one in policy.managed(catalogue)}
    rules: list[Rule] = []
    for name in layout.tables:
        for part in managed[name].parts:
            rule = policy.rules[part.rule - 1]
            rows = RowSelection(ranges=part.ranges)
            rules.append(Rule(name, rows, rule.technique, rule.home, wire=rule.wire))
    for dense in layout.dense:
        rules += _rules_of_blocks(dense, policy, managed, nodes)
    for shared in layout.shared:
        rules += _rules_of_shared(shared, policy, managed)
    return adaps.Policy(policy.name, [*rules, Rule("*")], source=policy.source)


def _catalogue(model: nn.Module, layout: Layout) -> Catalogue:
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    return Catalogue.of_shapes(shapes, layout.tables)


def _lookaheads(policy: adaps.Policy, catalogue: Catalogue) -> dict[str, int]:
    rules = {one.parameter.name: policy.rules[one.parts[0].rule - 1] for one in policy.managed(catalogue)}
    return {name: rule.lookahead for name, rule in rules.items() if rule.lookahead is not None}


def _rules_of_blocks(
    dense: DenseLayout, policy: adaps.Policy, managed: dict[str, Managed], nodes: int
) -> Iterator[Rule]:
    own = _rules_of(dense.names, policy, managed)
    for (_, rule), first, blocks in zip(own, dense.first_blocks, dense.blocks, strict=True):
        if rule.home.scheme in ("blocks", "shares"):
            bounds = rule.home.block_bounds(blocks, nodes)
            ranges = [
                (first + low, first + high, Home("node", node=node))
                for node, (low, high) in enumerate(pairwise(bounds))
                if low < high
            ]
        else:
            ranges = [(first, first + blocks, rule.home)]
        for low, high, home in ranges:
            rows = RowSelection(ranges=((low, high),))
            yield Rule(dense.table, rows, rule.technique, home, wire=rule.wire)


def _rules_of_shared(
    shared: DenseLayout, policy: adaps.Policy, managed: dict[str, Managed]
) -> Iterator[Rule]:
    """Gradients that are summed up for an optimizer of the user's: they stay nowhere for long."""
    for name, rule in _rules_of(shared.names, policy, managed):
        if rule.home.scheme != "hash":
            raise PolicyError(
                f"{policy.source}: home of {name} is {rule.home.text()}, but its own optimizer steps with "
                'gradients that the server only adds up; leave its home "hash"'
            )
        if rule.wire != "float32":
            raise PolicyError(
                f"{policy.source}: wire of {name} is {rule.wire!r}, but its own optimizer steps with "
                "gradients that the server only adds up, and nothing of them may be left over; leave its "
                "wire 'float32'"
            )
    yield Rule(shared.table, None, rule.technique)


def _rules_of(
    names: Sequence[str], policy: adaps.Policy, managed: dict[str, Managed]
) -> list[tuple[str, Rule]]:
    """The one rule of each of these parameters, which lie in one table."""
    found = []
    for name in names:
        parts = managed[name].parts
        if len({policy.rules[part.rule - 1].home for part in parts}) > 1:
            rules = " and ".join(str(part.rule) for part in parts)
            raise PolicyError(
                f"{policy.source}: rules {rules} give rows of {name} different homes; a dense parameter is "
                "kept whole, or in blocks or shares"
            )
        found.append((name, policy.rules[parts[0].rule - 1]))
    first = found[0]
    for name, rule in found:
        if rule.wire != first[1].wire:
            raise PolicyError(
                f"{policy.source}: {first[0]} is sent as {first[1].wire} and {name} as {rule.wire}, but "
                "dense parameters of one optimizer and dtype lie together in blocks; give them the same wire"
            )
        if rule.technique != first[1].technique:
            raise PolicyError(
                f"{policy.source}: {first[0]} is managed by {first[1].technique} and {name} by "
                f"{rule.technique}, but dense parameters of one optimizer and dtype lie together in blocks; "
                "give them the same technique"
            )
    return found
