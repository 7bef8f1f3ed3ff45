"""Options to manage a table of the server, and the policy that a choice of options makes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from adabench.backends.interface import Served
from adabench.harness.estimate.search.accesses import Accesses
from adabench.harness.estimate.search.problem import Choices
from adaps.policy import Home, MadeFor, Policy, RowSelection, Rule

BY_HASH, WHERE_READ = -1, -2
"""Homes in place of a node's number: by hash, or on the node that reads a row most."""
HOTTEST = (0.001, 0.01, 0.1)
"""Fractions of a table's rows, the most frequently read ones, that may have another technique."""
_NAMED = 100_000
"""Number of rows that a policy names at most to place them where they are read most."""


@dataclass(frozen=True)
class TableOption:
    """An option to manage a table.

    Attributes
    ----------
    technique : str
        Technique of the table's rows, as in a rule.
    hot : str, optional
        Technique of the hottest rows, if it differs.
    hottest : float
        Fraction of the rows that are the hottest ones.
    home : int
        Home of the rows: a node, `BY_HASH` or `WHERE_READ`.
    lookahead : int, optional
        Number of batches by which intent is signalled ahead; None where the technique needs no intent.
    wire : str
        Number format of rows on the network, as in a rule.
    """

    technique: str
    hot: str | None = None
    hottest: float = 0.0
    home: int = BY_HASH
    lookahead: int | None = None
    wire: str = "float32"

    def text(self) -> str:
        """A short description."""
        parts = [self.technique]
        if self.hot is not None:
            parts.insert(0, f"{self.hot} of {100 * self.hottest:g} %,")
        if self.home == WHERE_READ:
            parts.append("where read")
        elif self.home != BY_HASH:
            parts.append(f"on {self.home}")
        if self.lookahead is not None:
            parts.append(f"ahead {self.lookahead}")
        if self.wire != "float32":
            parts.append(self.wire)
        return " ".join(parts)


@dataclass(frozen=True)
class Space:
    """The options that are searched.

    Attributes
    ----------
    techniques : tuple of str
        Techniques of tables of rows.
    dense : tuple of str
        Techniques of dense parameters.
    split : bool
        Whether the hottest rows may have another technique.
    lookaheads : tuple of int
        Lookaheads in batches.
    wires : tuple of str
        Wire types of rows.
    """

    techniques: tuple[str, ...] = ("static", "relocation", "replication", "adaptive", "full_replication")
    dense: tuple[str, ...] = ("static", "replication")
    split: bool = True
    lookaheads: tuple[int, ...] = (5, 20)
    wires: tuple[str, ...] = ("float32",)


def table_options(served: Served, space: Space, nodes: int, dealt: bool) -> Iterator[TableOption]:
    """Every option to manage a table, in a fixed order.

    Parameters
    ----------
    served : Served
        Table of the server.
    space : Space
        Options that are searched.
    nodes : int
        Number of nodes.
    dealt : bool
        Whether nodes read different rows most, so that homes may follow.
    """
    everywhere = [BY_HASH, *range(nodes)] if nodes > 1 else [BY_HASH]
    for wire in space.wires:
        if served.dense:
            for technique in space.dense:
                if technique == "allreduce":
                    if wire == space.wires[0]:
                        yield TableOption(technique)
                    continue
                for home in everywhere:
                    yield TableOption(technique, home=home, wire=wire)
            continue
        scattered = [BY_HASH, *([WHERE_READ] if dealt else [])]
        for technique in space.techniques:
            stays = technique in ("static", "full_replication")
            for ahead in (None,) if stays else space.lookaheads:
                fixed = technique in ("static", "replication", "full_replication")
                for home in [*scattered, *everywhere[1:]] if fixed else scattered:
                    yield TableOption(technique, home=home, lookahead=ahead, wire=wire)
        if not space.split:
            continue
        for hot in ("replication", "full_replication"):
            for technique in ("static", "relocation", "adaptive"):
                if hot not in space.techniques or technique not in space.techniques:
                    continue
                announced = technique != "static" or hot == "replication"
                for hottest in HOTTEST:
                    if round(hottest * served.keys) < 1:
                        continue
                    for ahead in space.lookaheads if announced else (None,):
                        for home in scattered:
                            yield TableOption(technique, hot, hottest, home, ahead, wire)


def hottest_first(served: Served, accesses: Accesses) -> Choices:
    """Return a table's rows, the most frequently read rows first."""
    if served.dense:
        return np.arange(served.keys)
    return np.argsort(-accesses.counts[served.table].sum(axis=0), kind="stable")


def read_most(served: Served, accesses: Accesses, by_hash: Choices) -> Choices:
    """The node that reads each row most; homes by hash for rows that are never read or too many to name."""
    named, nodes = _named(served, accesses)
    homes = by_hash.copy()
    homes[named] = nodes
    return homes


def _named(served: Served, accesses: Accesses) -> tuple[Choices, Choices]:
    """Rows that a policy names, the most frequently read ones first, and the node that reads each most."""
    counts = accesses.counts[served.table]
    named = hottest_first(served, accesses)[:_NAMED]
    named = named[counts[:, named].sum(axis=0) > 0]
    return named, counts[:, named].argmax(axis=0)


def policy_of(
    name: str, tables: Sequence[Served], options: Sequence[TableOption], accesses: Accesses, made_for: MadeFor
) -> Policy:
    """The policy that manages each table by an option.

    Parameters
    ----------
    name : str
        Name of the policy.
    tables : sequence of Served
        Tables of the server.
    options : sequence of TableOption
        One option for each table.
    accesses : Accesses
        Access counts, which decide which rows are hot and where they are read most.
    made_for : MadeFor
        Model and cluster of the policy.
    """
    rules: list[Rule] = []
    for served, option in zip(tables, options, strict=True):
        for parameter in served.parameters:
            rules += _rules(parameter, served, option, accesses)
    return Policy(name, [*rules, Rule("*")], made_for)


def _rules(parameter: str, served: Served, option: TableOption, accesses: Accesses) -> Iterator[Rule]:
    def rule(technique: str, home: Home, rows: Choices | None = None) -> Rule:
        chosen = None if rows is None else RowSelection.of_rows(np.sort(rows))
        if technique == "allreduce":
            return Rule(parameter, technique=technique)
        return Rule(parameter, chosen, technique, home, option.lookahead, wire=option.wire)

    anywhere = Home() if option.home < 0 else Home("node", node=option.home)
    ordered = hottest_first(served, accesses)
    hot = ordered[: round(option.hottest * served.keys)] if option.hot is not None else ordered[:0]
    if option.home == WHERE_READ:
        named, nodes = _named(served, accesses)
        is_hot = np.isin(named, hot)
        for node in range(accesses.nodes):
            for technique, part in ((option.hot, is_hot), (option.technique, ~is_hot)):
                own = named[(nodes == node) & part]
                if technique is not None and len(own):
                    yield rule(technique, Home("node", node=node), own)
    if option.hot is not None and len(hot):
        yield rule(option.hot, anywhere, hot)
    yield rule(option.technique, anywhere)
