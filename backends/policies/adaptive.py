"""Intent decides for each row at any time: it moves to the only node with intent, or is copied to several.

A. Renz-Wieland et al., *Good Intentions: Adaptive Parameter Management via Intent Signaling*,
arXiv:2206.00470.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Rule


class Adaptive(RuleBuilder):
    name = "adaptive"
    fixed = (Rule("*", technique="adaptive"),)


BUILDER = Adaptive
