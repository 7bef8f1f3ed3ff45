"""Every row moves to the node that requests it.

A. Renz-Wieland et al., *Dynamic Parameter Allocation in Parameter Servers*, PVLDB 13, 2020. Lapse relocates
parameters among nodes during training, when a worker localizes them before their use. Here, intent has the
effect of localization.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Rule


class Lapse(RuleBuilder):
    name = "lapse"
    fixed = (Rule("*", technique="relocation"),)


BUILDER = Lapse
