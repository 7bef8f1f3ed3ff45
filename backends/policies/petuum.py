"""All nodes have a copy of all parameters, with bounded staleness.

Q. Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NIPS 2013:
workers read from a cache on their node. The age of its values is bounded.
"""

from __future__ import annotations

from adabench.backends.policies._building import RuleBuilder
from adabench.backends.policies.interface import BuilderOptions
from adaps.policy import Rule, Synchronization


class PetuumOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `petuum`.

    Attributes
    ----------
    staleness : int
        Number of steps after which the updates of all workers are visible to all workers.
    """

    staleness: int = 10

    def __post_init__(self) -> None:
        if self.staleness < 1:
            raise ValueError(f"staleness is {self.staleness}: it must be 1 or more")


class Petuum(RuleBuilder):
    name = "petuum"
    Options = PetuumOptions
    fixed = (Rule("*", technique="full_replication"),)

    def synchronization(self, options: PetuumOptions) -> Synchronization:
        return Synchronization(options.staleness)


BUILDER = Petuum
