"""Whole parameters, each on the node that has least to serve for its speed.

AutoDist's PSLoadBalancing (petuum/autodist, autodist/strategy/ps_lb_strategy.py) puts one variable after the
other on the server that holds the fewest bytes so far. Here the load is the bytes that a step reads where
accesses were measured, else the parameter's bytes, divided by the node's speed.
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
