"""Every parameter in equal ranges of consecutive rows, one per node.

What AutoDist's PartitionedPS and UnevenPartitionedPS do with a variable's first axis (petuum/autodist,
autodist/strategy/uneven_partition_ps_strategy.py), with as many parts as there are nodes.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Home, Rule


class Partitioned(RuleBuilder):
    name = "partitioned"
    fixed = (Rule("*", technique="static", home=Home("blocks")),)


BUILDER = Partitioned
