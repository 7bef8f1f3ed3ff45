"""The interface of a builder, which creates a policy from a model's parameters and a cluster's resources."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import msgspec

from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy

__all__ = ["Builder", "BuilderOptions"]


class BuilderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a builder. A builder derives its own class."""


class Builder(Protocol):
    """A method to manage parameters. Its class is constructed without arguments.

    Attributes
    ----------
    name : str
        Name on the command line.
    Options : type[BuilderOptions]
        Type of its options, with their defaults.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BuilderOptions]]

    def build(self, catalogue: Catalogue, resources: Resources, options: Any) -> Policy:
        """Return a policy for all parameters. Equal arguments give equal policies.

        Parameters
        ----------
        catalogue : adaps.policy.Catalogue
            Parameters of the model, with access counts if they were measured.
        resources : Resources
            Nodes and links of the cluster.
        options : BuilderOptions
            Options of the builder's own type `Options`.

        Raises
        ------
        AccessesMissing
            If required access counts are missing in the catalogue. The caller then counts accesses and calls
            again.
        PolicyError
            If other information is missing. The message names it.
        """
        ...
