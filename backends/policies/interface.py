"""The interface of a builder: it turns a model's parameters and a cluster's resources into a policy."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import msgspec

from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy

__all__ = ["Builder", "BuilderOptions"]


class BuilderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a builder; a builder derives its own class."""


class Builder(Protocol):
    """A way to manage parameters, constructed without arguments.

    Attributes
    ----------
    name : str
        Name on the command line.
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
            Options of this builder's own `Options`.

        Raises
        ------
        AccessesMissing
            If it needs access counts that the catalogue does not have: they are counted, and it is called
            again.
        PolicyError
            If it lacks something else; the message names it.
        """
        ...
