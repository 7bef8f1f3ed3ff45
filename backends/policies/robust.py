"""Gradients of all workers combined so that a few that are wrong do not decide; rows by intent.

The rules and where they come from are those of `adaps.policy.Aggregation`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Aggregation, Catalogue, Policy, Rule, Synchronization


class RobustOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `robust`.

    Attributes
    ----------
    aggregation : str
        The rule by which gradients are combined.
    faulty : int
        How many workers may be wrong at once, for the rules that have to know.
    keep : int or None
        Of krum: the mean of so many gradients is taken, instead of 1.
    """

    aggregation: Literal["mean", "median", "trimmed_mean", "krum", "suspicion"] = "median"
    faulty: int = 1
    keep: int | None = None

    def __post_init__(self) -> None:
        if self.faulty < 1:
            raise ValueError(f"faulty is {self.faulty}: it must be 1 or more")
        if self.keep is not None and (self.keep < 1 or self.aggregation != "krum"):
            raise ValueError(f"keep is {self.keep}: it must be 1 or more, with aggregation=krum")


class Robust:
    name: ClassVar[str] = "robust"
    Options: ClassVar[type[BuilderOptions]] = RobustOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: RobustOptions) -> Policy:
        told = options.aggregation not in ("mean", "median")
        rule = Aggregation(options.aggregation, options.faulty if told else None, options.keep)
        policy = policy_for(self.name, [Rule("*")], catalogue, resources, every=1)
        return replace(policy, synchronization=Synchronization(1, rule))


BUILDER = Robust
