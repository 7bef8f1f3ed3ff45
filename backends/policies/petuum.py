"""A copy of everything on every node, of bounded staleness.

Q. Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NIPS 2013:
workers read from a cache on their node whose values may be old, but not older than a bound.
"""

from __future__ import annotations

from typing import ClassVar

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Policy, Rule


class PetuumOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `petuum`.

    Attributes
    ----------
    staleness : int
        After so many steps the updates of all workers are visible to all.
    """

    staleness: int = 10

    def __post_init__(self) -> None:
        if self.staleness < 1:
            raise ValueError(f"staleness is {self.staleness}: it must be 1 or more")


class Petuum:
    name: ClassVar[str] = "petuum"
    Options: ClassVar[type[BuilderOptions]] = PetuumOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: PetuumOptions) -> Policy:
        rule = Rule("*", technique="full_replication")
        return policy_for(self.name, [rule], catalogue, resources, every=options.staleness)


BUILDER = Petuum
