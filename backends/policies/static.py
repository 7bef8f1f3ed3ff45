"""The classic parameter server: every row stays where a hash has put it.

M. Li et al., *Scaling Distributed Machine Learning with the Parameter Server*, OSDI 2014: workers push to and
pull from servers that share the keys. Here each node is worker and server, and intent is not acted on.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy, Rule


class Static:
    name: ClassVar[str] = "static"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        return policy_for(self.name, [Rule("*", technique="static")], catalogue, resources)


BUILDER = Static
