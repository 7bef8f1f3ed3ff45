"""Ranges of rows, and shares of the training samples, in proportion to the nodes' speed.

AutoDist's UnevenPartitionedPS (petuum/autodist, autodist/strategy/uneven_partition_ps_strategy.py) divides a
variable into a number of parts, the smallest number that does not divide its rows, independent of the nodes.
Here, a node with twice the speed has twice the rows and twice the samples.
"""

from __future__ import annotations

from adabench.backends.policies._building import RuleBuilder
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Home, Rule


class Uneven(RuleBuilder):
    name = "uneven"

    def rules(self, catalogue: Catalogue, resources: Resources, options: object) -> list[Rule]:
        return [Rule("*", technique="static", home=Home("shares", shares=tuple(resources.shares)))]

    def data_shares(self, resources: Resources) -> list[float]:
        return resources.shares


BUILDER = Uneven
