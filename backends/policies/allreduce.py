"""Data-parallel training: all nodes have a copy of all parameters, and all workers make each step together.

Gradients of dense parameters are averaged by all-reduce. Tables are replicated on all nodes, because an
all-reduce of all rows would also send unchanged rows.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Rule


class AllReduce(RuleBuilder):
    name = "allreduce"
    fixed = (Rule("dense", technique="allreduce"), Rule("*", technique="full_replication"))
    every = 1


BUILDER = AllReduce
