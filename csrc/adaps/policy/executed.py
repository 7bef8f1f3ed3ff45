"""A policy as the server executes it: for each table technique and wire, and ranges of rows by their home."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from adaps.policy.catalogue import Catalogue
from adaps.policy.document import Policy
from adaps.policy.fields import Home, PolicyError
from adaps.policy.limits import left_to_training, not_executed
from adaps.policy.matching import Managed

__all__ = ["UNMANAGED", "Management", "management_of", "refuse_unexecuted"]

BY_HASH = -1
"""In place of a node: a hash of the key chooses."""


@dataclass(frozen=True)
class Management:
    """How the rows of one table are managed.

    Attributes
    ----------
    technique : str, optional
        As of a `Rule`; None leaves it to the node.
    homes : sequence of (int, int)
        Ranges of rows: where each ends, and the node where its rows are at home, or -1 for a hash. Without
        any all rows are at home by hash.
    wire : str, optional
        As of a `Rule`; None leaves it to the table.
    """

    technique: str | None = None
    homes: Sequence[tuple[int, int]] = ()
    wire: str | None = None


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
    return [_management(policy, managed, nodes) for managed in policy.managed(catalogue)]


def refuse_unexecuted(policy: Policy, catalogue: Catalogue) -> None:
    """Raise PolicyError for the first thing that would have to be left out."""
    for sentence in not_executed(policy, catalogue):
        raise PolicyError(f"{policy.source}: {sentence}")


def _management(policy: Policy, managed: Managed, nodes: int) -> Management:
    rows = managed.parameter.rows
    homes: list[tuple[int, int, int]] = []
    for part in managed.parts:
        whole = list(_homes(policy.rules[part.rule - 1].home, rows, nodes))
        for start, end in part.ranges:
            homes += [
                (max(start, low), min(end, high), node)
                for low, high, node in whole
                if max(start, low) < min(end, high)
            ]
    first = policy.rules[managed.parts[0].rule - 1]
    if all(node == BY_HASH for _, _, node in homes):
        return Management(first.technique, wire=first.wire)
    ends = tuple((end, node) for _, end, node in sorted(homes))
    return Management(first.technique, ends, first.wire)


def _homes(home: Home, rows: int, nodes: int) -> Iterator[tuple[int, int, int]]:
    """First row, the one behind the last, and node of each range."""
    if home.scheme in ("blocks", "shares"):
        bounds = home.block_bounds(rows, nodes)
        yield from ((low, high, node) for node, (low, high) in enumerate(pairwise(bounds)))
    else:
        yield 0, rows, BY_HASH if home.node is None else home.node
