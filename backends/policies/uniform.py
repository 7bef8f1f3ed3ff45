"""One technique for all parameters, at home by hash: what the others are compared with."""

from __future__ import annotations

from typing import ClassVar, Literal

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy, Rule


class UniformOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `uniform`.

    Attributes
    ----------
    technique : str
        Of every parameter.
    """

    technique: Literal["adaptive", "relocation", "replication", "static", "full_replication"] = "adaptive"


class Uniform:
    name: ClassVar[str] = "uniform"
    Options: ClassVar[type[BuilderOptions]] = UniformOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: UniformOptions) -> Policy:
        return policy_for(self.name, [Rule("*", technique=options.technique)], catalogue, resources)


BUILDER = Uniform
