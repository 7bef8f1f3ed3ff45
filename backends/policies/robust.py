"""Combines all workers' gradients so that a few wrong ones do not dominate. Rows are managed by intent.

`adaps.policy.Aggregation` describes the rules and their sources.
"""

from __future__ import annotations

from typing import Literal

from adabench.backends.policies._building import RuleBuilder
from adabench.backends.policies.interface import BuilderOptions
from adaps.policy import Aggregation, Rule, Synchronization


class RobustOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `robust`.

    Attributes
    ----------
    aggregation : str
        Rule that combines the gradients.
    faulty : int
        Maximum number of wrong workers at a time, for rules that depend on it.
    keep : int or None
        Number of gradients that krum averages, by default 1.
    """

    aggregation: Literal["mean", "median", "trimmed_mean", "krum", "suspicion"] = "median"
    faulty: int = 1
    keep: int | None = None

    def __post_init__(self) -> None:
        if self.faulty < 1:
            raise ValueError(f"faulty is {self.faulty}: it must be 1 or more")
        if self.keep is not None and (self.keep < 1 or self.aggregation != "krum"):
            raise ValueError(f"keep is {self.keep}: it must be 1 or more, with aggregation=krum")


class Robust(RuleBuilder):
    name = "robust"
    Options = RobustOptions
    fixed = (Rule("*"),)

    def synchronization(self, options: RobustOptions) -> Synchronization:
        bounded = options.aggregation not in ("mean", "median")
        faulty = options.faulty if bounded else None
        return Synchronization(1, Aggregation(options.aggregation, faulty, options.keep))


BUILDER = Robust
