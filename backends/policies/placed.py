"""Each row is at home on the node that reads it most.

Ours, for use cases that deal samples by the rows that they read: `ctr`, `kge` and `mf`, by their `placement`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from adabench.backends.policies._building import policy_for
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import AccessesMissing, Catalogue, Home, Policy, PolicyError, RowSelection, Rule


class PlacedOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `placed`.

    Attributes
    ----------
    technique : "static", "relocation", "replication" or "adaptive"
        Of all tables; with "static" rows stay where they are at home.
    rows : int
        Of each table the most read rows, at most so many, are named; the others are at home by hash. A policy
        grows with what is named.
    """

    technique: Literal["static", "relocation", "replication", "adaptive"] = "static"
    rows: int = 100_000

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows is {self.rows}: it must be 1 or more")


class Placed:
    name: ClassVar[str] = "placed"
    Options: ClassVar[type[BuilderOptions]] = PlacedOptions

    def build(self, catalogue: Catalogue, resources: Resources, options: PlacedOptions) -> Policy:
        tables = [one for one in catalogue.parameters if one.kind == "table"]
        unknown = [one.name for one in tables if one.name not in catalogue.homes]
        if unknown:
            raise AccessesMissing(
                f"placed needs to know which node reads rows of {', '.join(unknown)} most: "
                "`adabench accesses` with the cluster's --nodes writes it, and --accesses names its file"
            )
        rules = [Rule("dense", technique="replication")]
        for table in tables:
            homes = catalogue.homes[table.name]
            if len(homes) and int(homes.max()) >= resources.nodes:
                raise PolicyError(
                    f"accesses of {table.name} were counted for more nodes, with a number "
                    f"{int(homes.max())}; there are {resources.nodes}"
                )
            order = np.argsort(-catalogue.accesses[table.name], kind="stable")[: options.rows]
            named = np.sort(order[homes[order] >= 0])
            for node in range(resources.nodes):
                own = named[homes[named] == node]
                if len(own):
                    rules.append(
                        Rule(
                            table.name,
                            RowSelection.of_rows(own),
                            technique=options.technique,
                            home=Home("node", node=node),
                        )
                    )
        return policy_for(self.name, [*rules, Rule("*", technique=options.technique)], catalogue, resources)


BUILDER = Placed
