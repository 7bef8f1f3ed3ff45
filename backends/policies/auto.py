"""Rows of tables move if steps take less time then: each training measures it in its first steps."""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy, Rule


class Auto:
    name: ClassVar[str] = "auto"
    Options: ClassVar[type[BuilderOptions]] = BuilderOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: BuilderOptions) -> Policy:
        rules = [Rule("tables", technique="auto"), Rule("*", technique="adaptive")]
        return policy_for(self.name, rules, catalogue, resources)


BUILDER = Auto
