"""Data-parallel training: a copy of everything on every node, and every step of all workers together.

Gradients of dense parameters are averaged by all-reduce. Tables of rows are copied to all nodes, because
all-reduce of all rows would send those that nobody has touched.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy, Rule


class AllReduce:
    name: ClassVar[str] = "allreduce"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        rules = [Rule("dense", technique="allreduce"), Rule("*", technique="full_replication")]
        return policy_for(self.name, rules, catalogue, resources, every=1)


BUILDER = AllReduce
