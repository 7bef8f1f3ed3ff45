"""The form of a policy that the server executes: for each table, ranges of rows by management and by home."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from adaps._core import homes_by_hash
from adaps.policy.document import Policy
from adaps.policy.eviction import Admission, Eviction, Memory
from adaps.policy.fields import Home
from adaps.policy.limits import left_to_training, not_executed
from adaps.policy.matching import Managed
from adaps.policy.model_parameters import Catalogue
from adaps.policy.validation import PolicyError

__all__ = [
    "BY_HASH",
    "UNMANAGED",
    "Management",
    "homes_by_hash",
    "homes_of",
    "management_of",
    "merged",
    "refuse_unexecuted",
]

BY_HASH = -1
"""Replaces a node's rank if a hash of the key determines the home."""
_What = TypeVar("_What")


@dataclass(frozen=True)
class Management:
    """The management of the rows of one table.

    Attributes
    ----------
    managed : sequence of (int, (str, str, int))
        Ranges of rows: the end of each, technique and wire as in a `Rule`, and exchange, 0 for "auto".
        Without ranges, the node determines the technique and the table the wire.
    homes : sequence of (int, int or str)
        Ranges of rows: the end of each, and the home of its rows. A home is a node, -1 for a hash, or a
        table: the hash of the key with the same index in that table. Without ranges, a hash determines all
        homes.
    evict, admit : Eviction and Admission, optional
        Which rows of a table with ids are retired, and which ids get a row. With None, the table's own
        settings apply.
    memory : Memory, optional
        Maximum memory for the rows on each node. With None, the table's own setting applies.
    """

    managed: Sequence[tuple[int, tuple[str, str, int]]] = ()
    homes: Sequence[tuple[int, int | str]] = ()
    evict: Eviction | None = None
    admit: Admission | None = None
    memory: Memory | None = None


UNMANAGED = Management()


def management_of(policy: Policy, catalogue: Catalogue, nodes: int) -> list[Management]:
    """Return the management of a catalogue's tables, in its order.

    Raises
    ------
    PolicyError
        If the policy does not fit, or has a setting that the server does not execute.
    """
    policy.check(catalogue, nodes)
    refuse_unexecuted(policy, catalogue)
    for sentence in left_to_training(policy, catalogue):
        raise PolicyError(f"{policy.source}: {sentence}")
    by_name = {managed.parameter.name: managed for managed in policy.managed(catalogue)}
    return [_management(policy, managed, by_name, nodes) for managed in by_name.values()]


def refuse_unexecuted(policy: Policy, catalogue: Catalogue) -> None:
    """Raise PolicyError for the first setting that the server does not execute."""
    for sentence in not_executed(policy, catalogue):
        raise PolicyError(f"{policy.source}: {sentence}")


def homes_of(
    policy: Policy, managed: Managed, by_name: Mapping[str, Managed], nodes: int
) -> list[tuple[int, int, int | str]]:
    """Return the homes of a parameter's rows as ranges: first row, row after the last, and home.

    A home is a node, `BY_HASH`, or the name of a table: the hash of the key with the same index in that
    table.

    Parameters
    ----------
    policy : Policy
        Policy that fits the catalogue.
    managed : Managed
        Parameter with its management.
    by_name : mapping of str to Managed
        All parameters, because rows may share the homes of another parameter's rows.
    nodes : int
        Number of nodes of the cluster.
    """
    homes: list[tuple[int, int, int | str]] = []
    for part in managed.parts:
        home = policy.rules[part.rule - 1].home
        if home.table is None:
            whole = list(_homes(home, managed.parameter.rows, nodes))
        else:
            whole = [
                (low, high, home.table if where == BY_HASH else where)
                for low, high, where in homes_of(policy, by_name[home.table], by_name, nodes)
            ]
        homes += [
            (max(start, low), min(end, high), where)
            for start, end in part.ranges
            for low, high, where in whole
            if start < high and low < end
        ]
    return homes


def merged(ranges: Iterable[tuple[int, int, _What]]) -> tuple[tuple[int, _What], ...]:
    """Return the ends and values of ranges that contain all rows, in order, with equal neighbors merged.

    Parameters
    ----------
    ranges : iterable of (int, int, object)
        First row, row after the last, and value of each range.
    """
    ends: list[tuple[int, _What]] = []
    for _, end, what in sorted(ranges, key=itemgetter(0)):
        if ends and ends[-1][1] == what:
            ends[-1] = (end, what)
        else:
            ends.append((end, what))
    return tuple(ends)


def _management(policy: Policy, managed: Managed, by_name: Mapping[str, Managed], nodes: int) -> Management:
    alike: list[tuple[int, int, tuple[str, str, int]]] = []
    for part in managed.parts:
        rule = policy.rules[part.rule - 1]
        clocks = rule.exchange if isinstance(rule.exchange, int) else 0
        alike += [(start, end, (rule.technique, rule.wire, clocks)) for start, end in part.ranges]
    homes = homes_of(policy, managed, by_name, nodes)
    by_hash = all(where == BY_HASH for _, _, where in homes)
    rule = policy.rules[managed.parts[0].rule - 1]  # the other fields are equal for all rows of a table
    homes_by_range = () if by_hash else merged(homes)
    return Management(merged(alike), homes_by_range, rule.evict, rule.admit, rule.memory)


def _homes(home: Home, rows: int, nodes: int) -> Iterator[tuple[int, int, int | str]]:
    """Yield first row, row after the last, and node or `BY_HASH` of each range."""
    if home.scheme in ("blocks", "shares"):
        bounds = home.block_bounds(rows, nodes)
        yield from ((low, high, node) for node, (low, high) in enumerate(pairwise(bounds)))
    else:
        yield 0, rows, BY_HASH if home.node is None else home.node
