"""Dense parameters by all-reduce, tables of rows by a parameter server.

S. Kim et al., *Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks*, EuroSys 2019. As in
AutoDist's form of it (petuum/autodist, autodist/strategy/parallax_strategy.py): what has sparse gradients
goes to servers, without copies, and each step is one of all workers. Tables are scattered by hash, so that
all servers share a large one, which the paper partitions for that.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.protocol import BuilderOptions, Catalogue, Policy, Resources
from adaps.policy import Rule


class Parallax:
    name: ClassVar[str] = "parallax"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        rules = [Rule("dense", technique="allreduce"), Rule("*", technique="static")]
        return policy_for(self.name, rules, catalogue, resources, every=1)


BUILDER = Parallax
