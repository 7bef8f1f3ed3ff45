"""Every row moves to the node that asks for it.

A. Renz-Wieland et al., *Dynamic Parameter Allocation in Parameter Servers*, PVLDB 13, 2020: Lapse relocates
parameters among nodes while training runs, when a worker localizes them ahead of their use. Intent is that.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Rule


class Lapse(RuleBuilder):
    name = "lapse"
    fixed = (Rule("*", technique="relocation"),)


BUILDER = Lapse
