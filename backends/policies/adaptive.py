"""Intent decides for each row and moment: it moves to one node that wants it, and is copied to several.

A. Renz-Wieland et al., *Good Intentions: Adaptive Parameter Management via Intent Signaling*,
arXiv:2206.00470.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy, Rule


class Adaptive:
    name: ClassVar[str] = "adaptive"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        return policy_for(self.name, [Rule("*", technique="adaptive")], catalogue, resources)


BUILDER = Adaptive
