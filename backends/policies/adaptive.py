"""Intent decides for each row and moment: it moves to one node that wants it, and is copied to several.

A. Renz-Wieland et al., *Good Intentions: Adaptive Parameter Management via Intent Signaling*,
arXiv:2206.00470.
"""

from adabench.backends.policies._building import RuleBuilder
from adaps.policy import Rule


class Adaptive(RuleBuilder):
    name = "adaptive"
    fixed = (Rule("*", technique="adaptive"),)


BUILDER = Adaptive
