"""Every parameter in equal ranges of consecutive rows, one per node.

What AutoDist's PartitionedPS and UnevenPartitionedPS do with a variable's first axis (petuum/autodist,
autodist/strategy/uneven_partition_ps_strategy.py), with as many parts as there are nodes.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Home, Policy, Rule


class Partitioned:
    name: ClassVar[str] = "partitioned"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        rule = Rule("*", technique="static", home=Home("blocks"))
        return policy_for(self.name, [rule], catalogue, resources)


BUILDER = Partitioned
