"""The entries of nodes in the store, and the list of all members.

Every process that reaches the store can read and write it, so entries are validated before use.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from adaps.errors import RendezvousError
from adaps.rendezvous import host_addresses
from adaps.rendezvous.job_secret import HOW_TO_SHARE

__all__ = ["Member", "MemberList", "ranks_in_words", "read_member_list", "read_members"]


class Member(msgspec.Struct, frozen=True):
    """The entry of one node."""

    address: str
    host: str
    has_secret: bool
    agreement: dict[str, str]


class MemberList(msgspec.Struct, frozen=True):
    """The list that rank 0 publishes when all nodes have arrived.

    Attributes
    ----------
    members : list of str
        For each rank, a random token and its `Member` as JSON, as written by the process itself.
    offer : str
        Name where rank 0 provides the job's secret; empty if every node has it.
    """

    members: list[str]
    offer: str


# Threads that use a type of msgspec for the first time concurrently can crash, so the types are used here
# first.
_MEMBERS = msgspec.json.Decoder(Member)
_MEMBER_LISTS = msgspec.json.Decoder(MemberList)


def read_member_list(text: str) -> MemberList:
    """Return the list of all members; RendezvousError if the store contains an invalid text."""
    try:
        return _MEMBER_LISTS.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RendezvousError(f"the rendezvous store has {text[:200]!r} as the list of all nodes") from error


def read_members(member_list: MemberList) -> list[Member]:
    """Return the members of a list, by rank.

    Raises
    ------
    RendezvousError
        If an entry is invalid, or nodes cannot work together. Every node raises an equal error.
    """
    members = [_read_member(entry.partition(" ")[2], rank) for rank, entry in enumerate(member_list.members)]
    _check(members)
    return members


def _read_member(text: str, rank: int) -> Member:
    try:
        return _MEMBERS.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RendezvousError(f"the rendezvous store has {text[:200]!r} as rank {rank}") from error


def _check(members: Sequence[Member]) -> None:
    without = [rank for rank, member in enumerate(members) if not member.has_secret]
    elsewhere = [rank for rank, member in enumerate(members) if member.host != members[0].host]
    if without and len(without) < len(members):
        raise RendezvousError(
            f"{ranks_in_words(without)} of {len(members)} nodes {_are(without)} without ADAPS_SECRET or "
            "ADAPS_SECRET_FILE, which the others have: every node needs the same"
        )
    if without and elsewhere:
        raise RendezvousError(
            f"{ranks_in_words(elsewhere)} of {len(members)} nodes {_are(elsewhere)} on another host than "
            f"rank 0, and nodes of several hosts need a secret to know each other: {HOW_TO_SHARE}"
        )
    for rank, member in enumerate(members):
        for name in (*members[0].agreement, *member.agreement):
            first, own = members[0].agreement.get(name, "none"), member.agreement.get(name, "none")
            if own != first:
                raise RendezvousError(
                    f"rank {rank} has {name} = {own} and rank 0 has {first}: give every node the same policy"
                )
        host = member.address.split(" ")[0]
        if elsewhere and host_addresses.is_loopback(host):
            raise RendezvousError(
                f"rank {rank} listens at {host}, which nodes on other hosts cannot reach: set listen= or the "
                "environment variable ADAPS_LISTEN to the address of its interface to them"
            )


def ranks_in_words(ranks: list[int]) -> str:
    """Return ``rank 1`` or ``ranks 1, 2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _are(ranks: list[int]) -> str:
    return "are" if len(ranks) > 1 else "is"
