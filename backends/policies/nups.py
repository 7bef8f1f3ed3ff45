"""Rows with far more accesses than the average are replicated, and all others are relocated.

A. Renz-Wieland et al., *NuPS: A Parameter Server for Machine Learning with Non-Uniform Parameter Access*,
SIGMOD 2022, chooses a technique for each parameter before training by its number of accesses. The settings of
its untuned experiments (alexrenz/AdaPM, experiments-sigmod22 in its docs) replicate the hottest 900 of 4.8
million, 3,272 of 1.9 million and 755 of 11 million parameters: 0.007 to 0.2 %. These settings do not explain
the numbers. Here, the threshold is `times` the mean, which is our choice.
"""

from __future__ import annotations

import numpy as np

from adabench.backends.policies._building import RuleBuilder, measured_tables
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, RowSelection, Rule


class NupsOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `nups`.

    Attributes
    ----------
    times : float
        Number of accesses, relative to the mean, above which a row is replicated.
    """

    times: float = 100.0

    def __post_init__(self) -> None:
        if not 0 < self.times < float("inf"):
            raise ValueError(f"times is {self.times}: it must be a positive number")


class Nups(RuleBuilder):
    name = "nups"
    Options = NupsOptions

    def rules(self, catalogue: Catalogue, resources: Resources, options: NupsOptions) -> list[Rule]:
        tables = measured_tables(self.name, catalogue)
        rules = [Rule("dense", technique="replication")]  # every step reads all of a dense parameter
        total = sum(int(catalogue.accesses[one.name].sum()) for one in tables)
        rows = sum(one.rows for one in tables)
        threshold = options.times * total / max(1, rows)
        for table in tables:
            hot = np.flatnonzero(catalogue.accesses[table.name] > threshold).astype(np.int64)
            if len(hot):
                rules.append(Rule(table.name, RowSelection.of_rows(hot), technique="replication"))
        return [*rules, Rule("*", technique="relocation")]


BUILDER = Nups
