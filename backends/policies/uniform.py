"""One technique for all parameters, with homes by hash: the reference for the other builders."""

from __future__ import annotations

from typing import Literal

from adabench.backends.policies._building import RuleBuilder
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Rule


class UniformOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `uniform`.

    Attributes
    ----------
    technique : str
        Technique of every parameter.
    """

    technique: Literal["adaptive", "relocation", "replication", "static", "full_replication"] = "adaptive"


class Uniform(RuleBuilder):
    name = "uniform"
    Options = UniformOptions

    def rules(self, catalogue: Catalogue, resources: Resources, options: UniformOptions) -> list[Rule]:
        return [Rule("*", technique=options.technique)]


BUILDER = Uniform
