"""Common parts of the builders: a base class, and the placement of whole parameters on nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import (
    AccessesMissing,
    Catalogue,
    DataSharing,
    Home,
    MadeFor,
    Parameter,
    Policy,
    Rule,
    Synchronization,
)

__all__ = ["RuleBuilder", "measured_tables", "pinned", "tables_of"]


class RuleBuilder:
    """Builds a policy of rules. A builder derives its own class and overrides some parts.

    Attributes
    ----------
    name : str
        Name of the builder on the command line.
    Options : type[BuilderOptions]
        Type of its options, with their defaults.
    fixed : tuple of Rule
        Rules of a builder that do not depend on model and cluster.
    every : int
        Number of steps after which all workers are synchronized; 0 for never.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions
    fixed: ClassVar[tuple[Rule, ...]] = ()
    every: ClassVar[int] = 0

    def rules(self, catalogue: Catalogue, resources: Resources, options: Any) -> Sequence[Rule]:
        """Return the rules for a model and a cluster."""
        return self.fixed

    def synchronization(self, options: Any) -> Synchronization:
        """Return when workers are synchronized, and how their gradients are combined."""
        return Synchronization(self.every)

    def data_shares(self, resources: Resources) -> str | Sequence[float]:
        """Return the nodes' shares of the training samples."""
        return "equal"

    def build(self, catalogue: Catalogue, resources: Resources, options: Any) -> Policy:
        """Return the policy, made for this model and cluster."""
        return Policy(
            self.name,
            self.rules(catalogue, resources, options),
            MadeFor(catalogue.sha256, resources.nodes),
            self.synchronization(options),
            DataSharing(self.data_shares(resources)),
        )


def tables_of(catalogue: Catalogue) -> list[Parameter]:
    """Return the model's tables."""
    return [one for one in catalogue.parameters if one.kind == "table"]


def measured_tables(name: str, catalogue: Catalogue) -> list[Parameter]:
    """Return the model's tables for the builder `name`, which needs access counts of all of them.

    Raises
    ------
    AccessesMissing
        If access counts of a table are missing.
    """
    tables = tables_of(catalogue)
    unknown = [one.name for one in tables if one.name not in catalogue.accesses]
    if unknown:
        raise AccessesMissing(
            f"{name} needs access counts of {', '.join(unknown)}: `adabench accesses` writes them, "
            "and --accesses names their file"
        )
    return tables


def pinned(catalogue: Catalogue, resources: Resources, technique: str) -> list[Rule]:
    """Return a rule for each parameter, which puts it on the node with the lowest load for its speed."""
    carried = [0.0] * resources.nodes
    rules = []
    for parameter in catalogue.parameters:
        relative = [load / node.speed for load, node in zip(carried, resources.node, strict=True)]
        node = relative.index(min(relative))
        carried[node] += _load(parameter, catalogue)
        rules.append(Rule(parameter.name, technique=technique, home=Home("node", node=node)))
    return rules


def _load(parameter: Parameter, catalogue: Catalogue) -> float:
    """Return the bytes of a parameter that a step reads on average; all of them without measured accesses."""
    counts = catalogue.accesses.get(parameter.name)
    if counts is None or catalogue.batches == 0:
        return float(parameter.bytes)
    return 4.0 * parameter.length * float(counts.sum()) / catalogue.batches
