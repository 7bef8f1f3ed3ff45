"""What a builder of policies is: it turns a model's parameters and a cluster's resources into a policy."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import msgspec

from adabench.backends.policies.cost_model import ask_nodes, measured_costs
from adabench.backends.policies.resources import Costs, Link, LinkBetween, Node, Resources, ResourcesError
from adaps.policy import (
    AccessesMissing,
    Catalogue,
    DataSharing,
    Home,
    MadeFor,
    Managed,
    Parameter,
    Policy,
    PolicyError,
    RowSelection,
    Rule,
)
from adaps.policy.executed import BY_HASH, homes_by_hash, homes_of
from adaps.policy.limits import not_executed
from adaps.policy.matching import matches
from adaps.simulation import MESSAGE_BYTES

__all__ = [
    "BY_HASH",
    "MESSAGE_BYTES",
    "AccessesMissing",
    "Builder",
    "BuilderOptions",
    "Catalogue",
    "Costs",
    "DataSharing",
    "Home",
    "Link",
    "LinkBetween",
    "MadeFor",
    "Managed",
    "Node",
    "Parameter",
    "Policy",
    "PolicyError",
    "Resources",
    "ResourcesError",
    "RowSelection",
    "Rule",
    "ask_nodes",
    "homes_by_hash",
    "homes_of",
    "matches",
    "measured_costs",
    "not_executed",
]


class BuilderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a builder; a builder derives its own class."""


class Builder(Protocol):
    """A way to manage parameters, constructed without arguments.

    Attributes
    ----------
    name : str
        What the command line calls it.
    Options : type[BuilderOptions]
        Its options with their defaults.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BuilderOptions]]

    def build(self, catalogue: Catalogue, resources: Resources, options: Any) -> Policy:
        """Decide for every parameter; equal arguments give equal policies.

        Parameters
        ----------
        catalogue : adaps.policy.Catalogue
            The model's parameters, with access counts if they were measured.
        resources : Resources
            Nodes and links of the cluster.
        options : BuilderOptions
            Of this builder's own `Options`.

        Raises
        ------
        AccessesMissing
            If it needs access counts that the catalogue does not have: they are counted, and it is called
            again.
        PolicyError
            If it lacks something else: one sentence.
        """
        ...
