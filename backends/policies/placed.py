"""Each row's home is the node that reads it most often.

This builder is our own. It is for use cases that assign samples to workers by the rows that they read: `ctr`,
`kge` and `mf`, with their parameter `placement`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from adabench.backends.policies._building import RuleBuilder, tables_of
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import AccessesMissing, Catalogue, Home, Parameter, PolicyError, RowSelection, Rule


class PlacedOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `placed`.

    Attributes
    ----------
    technique : "static", "relocation", "replication" or "adaptive"
        Technique of all tables. With "static", rows stay on their home nodes.
    rows : int
        Maximum number of explicitly placed rows per table, the most read ones. A hash determines the homes of
        all others. The size of the policy grows with this number.
    """

    technique: Literal["static", "relocation", "replication", "adaptive"] = "static"
    rows: int = 100_000

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows is {self.rows}: it must be 1 or more")


class Placed(RuleBuilder):
    name = "placed"
    Options = PlacedOptions

    def rules(self, catalogue: Catalogue, resources: Resources, options: PlacedOptions) -> list[Rule]:
        tables = tables_of(catalogue)
        unknown = [one.name for one in tables if one.name not in catalogue.homes]
        if unknown:
            raise AccessesMissing(
                f"placed needs to know which node reads rows of {', '.join(unknown)} most: "
                "`adabench accesses` with the cluster's --nodes writes it, and --accesses names its file"
            )
        rules = [rule for table in tables for rule in self._homes(table, catalogue, resources.nodes, options)]
        return [Rule("dense", technique="replication"), *rules, Rule("*", technique=options.technique)]

    @staticmethod
    def _homes(table: Parameter, catalogue: Catalogue, nodes: int, options: PlacedOptions) -> list[Rule]:
        """Return a rule for each node, with the most read rows of the table that it reads most often."""
        homes = catalogue.homes[table.name]
        if len(homes) and int(homes.max()) >= nodes:
            raise PolicyError(
                f"accesses of {table.name} were counted for more nodes, with a number {int(homes.max())}; "
                f"there are {nodes}"
            )
        order = np.argsort(-catalogue.accesses[table.name], kind="stable")[: options.rows]
        named = np.sort(order[homes[order] >= 0])
        rows_by_node = [(node, named[homes[named] == node]) for node in range(nodes)]
        return [
            Rule(table.name, RowSelection.of_rows(rows), options.technique, home=Home("node", node=node))
            for node, rows in rows_by_node
            if len(rows)
        ]


BUILDER = Placed
