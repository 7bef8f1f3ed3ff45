"""The classic parameter server: every row stays at its home, which a hash determines.

M. Li et al., *Scaling Distributed Machine Learning with the Parameter Server*, OSDI 2014: workers push to and
pull from servers that share the keys. Here, each node is worker and server, and intent has no effect.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Rule


class Static(RuleBuilder):
    name = "static"
    fixed = (Rule("*", technique="static"),)


BUILDER = Static
