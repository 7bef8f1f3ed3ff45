"""A policy as the server executes it: for each table ranges of rows by how they are managed, and by home."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from adaps._core import homes_by_hash
from adaps.policy.document import Policy
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
"""In place of a node: a hash of the key chooses."""
_What = TypeVar("_What")


@dataclass(frozen=True)
class Management:
    """How the rows of one table are managed.

    Attributes
    ----------
    managed : sequence of (int, (str, str, int))
        Ranges of rows: where each ends, technique and wire as of a `Rule`, and its exchange, 0 for "auto".
        Without any the technique is left to the node, and the wire to the table.
    homes : sequence of (int, int or str)
        Ranges of rows: where each ends, and the node where its rows are at home, -1 for a hash, or the table
        of which a hash places the rows of the same numbers. Without any all rows are at home by hash.
    """

    managed: Sequence[tuple[int, tuple[str, str, int]]] = ()
    homes: Sequence[tuple[int, int | str]] = ()


UNMANAGED = Management()


def management_of(policy: Policy, catalogue: Catalogue, nodes: int) -> list[Management]:
    """How the tables of a catalogue are managed, in its order.

    Raises
    ------
    PolicyError
        If the policy does not fit, or has something in it that the server does not execute.
    """
    policy.check(catalogue, nodes)
    refuse_unexecuted(policy, catalogue)
    for sentence in left_to_training(policy, catalogue):
        raise PolicyError(f"{policy.source}: {sentence}")
    by_name = {managed.parameter.name: managed for managed in policy.managed(catalogue)}
    return [_management(policy, managed, by_name, nodes) for managed in by_name.values()]


def refuse_unexecuted(policy: Policy, catalogue: Catalogue) -> None:
    """Raise PolicyError for the first thing that would have to be left out."""
    for sentence in not_executed(policy, catalogue):
        raise PolicyError(f"{policy.source}: {sentence}")


def homes_of(
    policy: Policy, managed: Managed, by_name: Mapping[str, Managed], nodes: int
) -> list[tuple[int, int, int | str]]:
    """Where the rows of a parameter are at home: first row, the one behind the last, and where.

    That is a node, `BY_HASH`, or the name of a table: where a hash puts its rows of the same numbers.

    Parameters
    ----------
    policy : Policy
        That fits.
    managed : Managed
        The parameter.
    by_name : mapping of str to Managed
        All parameters: rows may be at home with those of another one.
    nodes : int
        Of the cluster.
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
    """Where ranges end that together are all rows, in order; neighbours that are alike are one.

    Parameters
    ----------
    ranges : iterable of (int, int, object)
        First row, the one behind the last, and what they are compared by.
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
    return Management(merged(alike), () if by_hash else merged(homes))


def _homes(home: Home, rows: int, nodes: int) -> Iterator[tuple[int, int, int | str]]:
    """First row, the one behind the last, and node or `BY_HASH`, of each range."""
    if home.scheme in ("blocks", "shares"):
        bounds = home.block_bounds(rows, nodes)
        yield from ((low, high, node) for node, (low, high) in enumerate(pairwise(bounds)))
    else:
        yield 0, rows, BY_HASH if home.node is None else home.node
