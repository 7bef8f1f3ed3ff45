"""Whole parameters, each on the node with the lowest load for its speed.

AutoDist's PSLoadBalancing (petuum/autodist, autodist/strategy/ps_lb_strategy.py) assigns one variable after
the other to the server with the fewest bytes so far. Here, the load of a parameter is the number of bytes
that a step reads, or the parameter's size without measured accesses, divided by the node's speed.
"""

from __future__ import annotations

from adabench.backends.policies._building import RuleBuilder, pinned
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Rule


class Balanced(RuleBuilder):
    name = "balanced"

    def rules(self, catalogue: Catalogue, resources: Resources, options: object) -> list[Rule]:
        return [*pinned(catalogue, resources, "static"), Rule("*", technique="static")]


BUILDER = Balanced
