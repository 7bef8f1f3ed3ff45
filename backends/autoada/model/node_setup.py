"""Node setup: the server's tables for a model, and the options of its training, from a policy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from torch import nn

import adaps
import adaps.node_options
import adaps.rendezvous
from adaps.optimizers import Optimizer
from adaps.policy import Aggregation, Catalogue, Home, Managed, PolicyError, RowSelection, Rule
from adaps.policy.executed import merged, refuse_unexecuted
from adaps.policy.toml_text import toml_numbers
from adaps.tables import managed_specs
from autoada.model.optimizer_lookup import optimizers_of
from autoada.optimizer.rules import Optimizers
from autoada.parameters.layout import DenseLayout, Layout, layout_of
from autoada.training.lookahead_by_row import RowLookahead


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a policy that the training code executes instead of the server."""

    every: int = 0
    """Number of steps after which all updates of all workers are visible to all workers; 0 leaves the time to
    the server."""
    lookaheads: Mapping[str, RowLookahead] = field(default_factory=dict)
    """Number of batches between intent and use, by the qualified names of parameters whose lookahead the
    policy sets."""
    allreduced: frozenset[str] = frozenset()
    """Qualified names of dense parameters whose gradients are all-reduced."""
    shares: tuple[float, ...] = ()
    """Each node's part of the samples of a step; empty if they are equal."""
    aggregation: Aggregation = field(default_factory=Aggregation)
    """Rule by which a step of all workers combines their gradients."""

    @property
    def is_robust(self) -> bool:
        """Whether gradients are combined by a rule other than the mean."""
        return self.aggregation != Aggregation()

    def weight(self, rank: int) -> float:
        """Return the weight of a node's gradients with which all samples count equally; 1 on average."""
        return len(self.shares) * self.shares[rank] if self.shares else 1.0

    def agreement(self) -> dict[str, str]:
        """Return the options that must be equal on all nodes, by their names in error messages."""
        return {
            **({"every": str(self.every)} if self.every else {}),
            **({"aggregation": self.aggregation.text()} if self.is_robust else {}),
            **{f"lookahead of {name}": ahead.text() for name, ahead in self.lookaheads.items()},
            **{f"technique of {name}": "allreduce" for name in sorted(self.allreduced)},
            **({"shares of the data": toml_numbers(self.shares)} if self.shares else {}),
        }


@dataclass(frozen=True)
class TrainingPlan:
    """Plan for the training of a model on a cluster."""

    layout: Layout
    managed: adaps.Policy | None
    training: TrainingOptions
    nodes: int


_of_node: weakref.WeakKeyDictionary[adaps.Node, TrainingOptions] = weakref.WeakKeyDictionary()


def create_node(
    model: nn.Module,
    optimizer: Optimizers | Optimizer | None = None,
    *,
    tables: Iterable[str] | None = None,
    policy: adaps.Policy | None = None,
    row_dtype: str = "float32",
    **options: Any,
) -> adaps.Node:
    """Create the node that the worker threads of this process share for `AdaModel`s of `model`.

    Parameters
    ----------
    model : torch.nn.Module
        Plain model. Only the shapes of its parameters are read; the model is not changed.
    optimizer : torch.optim.Optimizer or mapping, optional
        Plain optimizers, in the form that `AdaModel` takes. Only their update rules are read.
    tables : iterable of str, optional
        Names of the parameters that are tables, in the form that `AdaModel` takes.
    policy : adaps.Policy, optional
        Policy that manages the parameters of the model, or some rows of its tables.
    row_dtype : {"float32", "bfloat16"}
        Type of the tables' values in the server's memory, as for `adaps.Table`. The model reads the values in
        the dtype of its parameters in any case.
    **options
        Further arguments of `adaps.Node`, such as ``workers``.

    Returns
    -------
    adaps.Node
        Node of this process. The caller closes it.
    """
    plan = plan_of(model, optimizers_of(model, optimizer), tables, policy)
    return open_node(plan, row_dtype, **options)


def check_policy(
    model: nn.Module,
    optimizer: Optimizers | Optimizer | None,
    policy: adaps.Policy,
    nodes: int,
    **options: Any,
) -> None:
    """Raise PolicyError if `create_node` would refuse these options on this number of nodes."""
    plan = plan_of(model, optimizers_of(model, optimizer), None, policy, nodes)
    _check(plan, options)
    if plan.managed is not None:
        # The folder of a node is not known before it starts. Any folder serves the check.
        managed_specs(plan.layout.server_tables(), plan.managed, nodes, os.curdir)


def plan_of(
    model: nn.Module,
    optimizer: Optimizers | Optimizer | None,
    tables: Iterable[str] | None,
    policy: adaps.Policy | None,
    nodes: int | None = None,
) -> TrainingPlan:
    """Return the plan of a policy for a model, on `nodes` nodes or on torchrun's number of nodes.

    Raises
    ------
    PolicyError
        If the policy does not fit, contains an option that is not executed, or manages parameters
        differently although their gradients are added up together.
    """
    layout = layout_of(model, optimizer, tables)
    if nodes is None:
        place = adaps.rendezvous.place_in_environment()
        nodes = 1 if place is None else place.world_size
    if policy is None:
        return TrainingPlan(layout, None, TrainingOptions(), nodes)
    if not isinstance(policy, adaps.Policy):
        raise TypeError(f"policy is {policy!r}; it must be an adaps.Policy")
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    catalogue = Catalogue.of_shapes(shapes, layout.tables, layout.hashed)
    policy.check(catalogue, nodes)
    refuse_unexecuted(policy, catalogue)
    managed = {one.parameter.name: one for one in policy.managed(catalogue)}
    rules = {name: policy.rules[one.parts[0].rule - 1] for name, one in managed.items()}
    for name, rule in rules.items():
        if rule.admit is not None:
            raise PolicyError(
                f"{policy.source}: rule {managed[name].parts[0].rule}: admit = {rule.admit.text()} of {name} "
                "is executed by a node and not by autoada, because a model's lookup needs a row for each id; "
                "leave admit out"
            )
    training = TrainingOptions(
        policy.synchronization.every,
        _lookaheads(policy, managed.values()),
        frozenset(name for name, rule in rules.items() if rule.technique == "allreduce"),
        policy.data.numbers,
        policy.synchronization.aggregation,
    )
    layout = layout_of(model, optimizer, tables, training.allreduced)
    if training.is_robust and layout.summed:
        raise PolicyError(
            f"{policy.source}: aggregation {training.aggregation.rule!r} is not executed for "
            f"{layout.summed[0].names[0]}, whose own optimizer steps with gradients that the server adds up; "
            "give it technique 'allreduce'"
        )
    return TrainingPlan(layout, _server_policy(layout, policy, managed, rules, nodes), training, nodes)


def open_node(plan: TrainingPlan, row_dtype: str, **options: Any) -> adaps.Node:
    """Create the node of a plan, with further arguments of `adaps.Node`."""
    _check(plan, options)
    tables = plan.layout.server_tables(row_dtype)
    node = adaps.Node(tables, policy=plan.managed, agreement=plan.training.agreement(), **options)
    _of_node[node] = plan.training
    return node


def plan_on_node(
    node: adaps.Node, model: nn.Module, optimizer: Optimizers | Optimizer | None, tables: Iterable[str] | None
) -> TrainingPlan:
    """Return the plan for a model on an existing node."""
    training = _of_node.get(node, TrainingOptions())
    layout = layout_of(model, optimizer, tables, training.allreduced)
    return TrainingPlan(layout, node.policy, training, node.world_size)


def _server_policy(
    layout: Layout,
    policy: adaps.Policy,
    managed: Mapping[str, Managed],
    first_rules: Mapping[str, Rule],
    nodes: int,
) -> adaps.Policy:
    """Return the policy for the server's tables that follows from a policy for the model's parameters.

    All rows of a dense parameter have the same rule, which is in `first_rules`.
    """
    rules: list[Rule] = []
    for name in layout.tables:
        for part in managed[name].parts:
            rule = policy.rules[part.rule - 1]
            rows = RowSelection(ranges=part.ranges)
            rules.append(replace(rule, parameters=name, rows=rows, lookahead=None))
    for dense in layout.dense:
        rules += _rules_of_blocks(dense, first_rules, nodes)
    rules += [_rule_of_sums(summed, first_rules, policy.source) for summed in layout.summed]
    return adaps.Policy(policy.name, [*rules, Rule("*")], source=policy.source)


def _lookaheads(policy: adaps.Policy, managed: Iterable[Managed]) -> dict[str, RowLookahead]:
    """Return the lookaheads of parameters for which the policy sets one."""
    found = {}
    for one in managed:
        ranges = [
            (start, end, policy.rules[part.rule - 1].lookahead)
            for part in one.parts
            for start, end in part.ranges
        ]
        ends, batches = zip(*merged(ranges), strict=True)
        if any(ahead is not None for ahead in batches):
            found[one.parameter.name] = RowLookahead(ends, batches)
    return found


def _check(plan: TrainingPlan, options: Mapping[str, Any]) -> None:
    """Raise PolicyError if these workers and links cannot exchange gradients as the policy requires."""
    aggregation, workers = plan.training.aggregation, options.get("workers", 1)
    try:
        aggregation.check(plan.nodes * workers)
    except PolicyError as error:
        raise PolicyError(f"[synchronization]: {error}") from error
    if plan.training.allreduced:
        what, instead = f"technique 'allreduce' of {min(plan.training.allreduced)}", "give another technique"
        if not plan.layout.server_tables():
            raise PolicyError(
                f"{what}, and of all other parameters, leaves nothing to the parameter server: use "
                "torch.nn.parallel.DistributedDataParallel"
            )
        if workers != 1:
            raise PolicyError(f"{what} takes one worker per node, not {workers}: start more nodes")
    elif plan.training.is_robust:
        what, instead = f"aggregation {aggregation.rule!r}", "give aggregation 'mean'"
    else:
        return
    if plan.nodes == 1:
        return
    # The sockets of gloo lack some options of the server's links.
    network = options.get("network") or os.environ.get("ADAPS_NETWORK", "loopback")
    if network not in {"loopback", "sockets"}:
        raise PolicyError(
            f"{what} has sockets of its own, which the network {network!r} does not slow down: {instead}, or "
            "imitate the network between network namespaces"
        )
    if adaps.node_options.wants_frame_mac(options.get("frame_mac")):
        raise PolicyError(f"{what} has sockets of its own, whose frames have no MAC; {instead}")


def _rules_of_blocks(dense: DenseLayout, rules: Mapping[str, Rule], nodes: int) -> Iterator[Rule]:
    for name, first, blocks in zip(dense.names, dense.first_blocks, dense.blocks, strict=True):
        rule = rules[name]
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
            yield Rule(dense.table, rows, rule.technique, home, exchange=rule.exchange, wire=rule.wire)


def _rule_of_sums(summed: DenseLayout, rules: Mapping[str, Rule], source: str) -> Rule:
    """Return the rule of a table in which the server only adds up gradients; refuse other options."""
    technique = rules[summed.names[0]].technique
    for name in summed.names:
        rule = rules[name]
        if rule.technique != technique:
            raise PolicyError(
                f"{source}: {summed.names[0]} is managed by {technique} and {name} by {rule.technique}, but "
                "gradients of parameters of one optimizer of their own are added up together; give them the "
                "same technique"
            )
        for option, value, needed in (
            ("home", rule.home.text(), '"hash"'),
            ("exchange", repr(rule.exchange), "'auto'"),
            ("wire", repr(rule.wire), "'float32'"),
        ):
            if value != needed:
                raise PolicyError(
                    f"{source}: {option} of {name} is {value}, but its own optimizer steps with gradients "
                    f"that the server only adds up; leave its {option} {needed}"
                )
    return Rule(summed.table, None, technique)
