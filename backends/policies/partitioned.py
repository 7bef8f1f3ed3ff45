"""Every parameter is divided into equal ranges of consecutive rows, one per node.

AutoDist's PartitionedPS and UnevenPartitionedPS divide a variable's first axis in this way (petuum/autodist,
autodist/strategy/uneven_partition_ps_strategy.py). Here, the number of parts equals the number of nodes.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Home, Rule


class Partitioned(RuleBuilder):
    name = "partitioned"
    fixed = (Rule("*", technique="static", home=Home("blocks")),)


BUILDER = Partitioned
