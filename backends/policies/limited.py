"""Tables with fewer rows than ids, or with less memory than rows.

A table with ids retires rows in the order `evict` when it is full: see `adaps.policy.Eviction`. A table whose
rows need more than `memory` has the other rows in files. Rows are managed as by `adaptive`.
"""

from __future__ import annotations

from typing import Literal

from adabench.backends.policies._building import RuleBuilder, tables_of
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Eviction, Memory, PolicyError, Rule


class LimitedOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `limited`.

    Attributes
    ----------
    evict : str or None
        Order in which rows of full tables are given to other ids. With None, rows keep their ids.
    memory : str or None
        Maximum memory for the rows of each table on each node, with a unit, such as 2GiB. With None, all rows
        are in memory.
    """

    evict: Literal["intent", "lru", "lfu"] | None = None
    memory: str | None = None


class Limited(RuleBuilder):
    name = "limited"
    Options = LimitedOptions

    def rules(self, catalogue: Catalogue, resources: Resources, options: LimitedOptions) -> list[Rule]:
        evict = None if options.evict is None else Eviction(options.evict)
        memory = None if options.memory is None else Memory.of(options.memory)
        tables = tables_of(catalogue)
        if evict is not None and not any(one.has_ids for one in tables):
            raise PolicyError(
                f"evict is {evict.order!r}, and no table has ids of any value: leave evict out, or give the "
                "use case keys=hash"
            )
        return [
            *(Rule(one.name, evict=evict if one.has_ids else None, memory=memory) for one in tables),
            Rule("*"),
        ]


BUILDER = Limited
