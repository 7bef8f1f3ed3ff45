"""Rows that are accessed far more often than the average are replicated, the rest is relocated.

A. Renz-Wieland et al., *NuPS: A Parameter Server for Machine Learning with Non-Uniform Parameter Access*,
SIGMOD 2022: a technique for each parameter, chosen before training by how often it is accessed. The settings
of its untuned experiments (alexrenz/AdaPM, experiments-sigmod22 among its docs) replicate 900 of 4.8 million,
3,272 of 1.9 million and 755 of 11 million parameters: 0.007 to 0.2 %, the hottest ones. How the authors came
to these numbers is not written there; here the threshold is `times` the mean, a setting of ours.
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
        Factor over the mean number of accesses above which a row is replicated.
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
        rules = [Rule("dense", technique="replication")]  # Every step reads all of a dense parameter.
        total = sum(int(catalogue.accesses[one.name].sum()) for one in tables)
        rows = sum(one.rows for one in tables)
        threshold = options.times * total / max(1, rows)
        for table in tables:
            hot = np.flatnonzero(catalogue.accesses[table.name] > threshold).astype(np.int64)
            if len(hot):
                rules.append(Rule(table.name, RowSelection.of_rows(hot), technique="replication"))
        return [*rules, Rule("*", technique="relocation")]


BUILDER = Nups
