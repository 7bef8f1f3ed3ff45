"""Data-parallel training: a copy of everything on every node, and every step of all workers together.

Gradients of dense parameters are averaged by all-reduce. Tables of rows are copied to all nodes, because
all-reduce of all rows would send those that nobody has touched.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Rule


class AllReduce(RuleBuilder):
    name = "allreduce"
    fixed = (Rule("dense", technique="allreduce"), Rule("*", technique="full_replication"))
    every = 1


BUILDER = AllReduce
