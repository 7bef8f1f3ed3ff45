"""Ranges of rows, and shares of the training samples, in proportion to the nodes' speed.

AutoDist's UnevenPartitionedPS (petuum/autodist, autodist/strategy/uneven_partition_ps_strategy.py) splits a
variable into as many parts as the smallest number that does not divide its rows, whatever the nodes are like.
Here a node that is twice as fast has twice the rows and twice the samples.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Home, Policy, Rule


class Uneven:
    name: ClassVar[str] = "uneven"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        rule = Rule("*", technique="static", home=Home("shares", shares=tuple(resources.shares)))
        return policy_for(self.name, [rule], catalogue, resources, shares=resources.shares)


BUILDER = Uneven
