"""Every row moves to the node that asks for it.

A. Renz-Wieland et al., *Dynamic Parameter Allocation in Parameter Servers*, PVLDB 13, 2020: Lapse relocates
parameters among nodes while training runs, when a worker localizes them ahead of their use. Intent is that.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy, Rule


class Lapse:
    name: ClassVar[str] = "lapse"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        return policy_for(self.name, [Rule("*", technique="relocation")], catalogue, resources)


BUILDER = Lapse
