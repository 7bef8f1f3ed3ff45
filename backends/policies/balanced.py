"""Whole parameters, each on the node that has least to serve for its speed.

AutoDist's PSLoadBalancing (petuum/autodist, autodist/strategy/ps_lb_strategy.py) puts one variable after the
other on the server that holds the fewest bytes so far. Here the load is the bytes that a step reads where
accesses were measured, else the parameter's bytes, divided by the node's speed.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import pinned, policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy, Rule


class Balanced:
    name: ClassVar[str] = "balanced"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        rules = [*pinned(catalogue, resources, "static"), Rule("*", technique="static")]
        return policy_for(self.name, rules, catalogue, resources)


BUILDER = Balanced
