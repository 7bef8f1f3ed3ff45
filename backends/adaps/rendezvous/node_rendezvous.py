"""The exchange of nodes' addresses through a store.

The store may outlive the processes that use it: the store of torchrun's agent survives restarts. No
environment variable distinguishes one start of the job from the next, because each agent counts its own
restarts. Therefore the processes agree on a generation. A process that arrives as rank 0 opens a new
generation. The other processes read it and add their addresses to it. When all have done so, rank 0 publishes
the list of members. Entries of older generations are never read, and a process that is not in the list waits
for the next generation.

Every process that reaches the port of the store can read it, so it contains no secret. Its content is trusted
only after the handshake of the connections, which proves that both sides have the job's secret and equal
lists.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from adaps.errors import RendezvousError
from adaps.rendezvous import host_addresses
from adaps.rendezvous.environment import Place
from adaps.rendezvous.job_secret import Handover, secret_in_environment, take_secret
from adaps.rendezvous.membership import Member, MemberList, ranks_in_words, read_member_list, read_members
from adaps.rendezvous.timed_store import TimedStore, open_store

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

__all__ = ["Clock", "Rendezvous", "RendezvousResult", "rendezvous_at"]

_POLL_SECONDS = 0.02
"""Seconds between two checks of the store."""


@dataclass(frozen=True)
class RendezvousResult:
    """The addresses and the secret, which every node has after a rendezvous."""

    addresses: list[str]
    secret: str
    """Secret that is only valid for this rendezvous, so that a process of an earlier start is rejected."""


class Clock:
    """The clock of a rendezvous."""

    def now(self) -> float:
        """Return the seconds of `time.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        time.sleep(seconds)


class Rendezvous:
    """Finds the other nodes of a cluster through a store. All its keys begin with `prefix`.

    Parameters
    ----------
    store : torch.distributed.Store
        Store of all nodes.
    rank, world_size : int
        Rank of the node, and number of nodes.
    prefix : str
        Prefix of all keys.
    interface : callable
        Function that returns the default listening address of a node.
    reopen : callable, optional
        Function that opens another connection before a deadline, after the connection to the store was lost.
        A process that arrives early may have found the store of the job's previous start, which is about to
        end.
    clock : Clock, optional
        Clock for the waits of the rendezvous.
    agreement : mapping of str to str, optional
        Values that must be equal on all nodes.
    """

    def __init__(
        self,
        store: Store | TimedStore,
        rank: int,
        world_size: int,
        prefix: str,
        *,
        interface: Callable[[], str] = lambda: host_addresses.LOOPBACK,
        reopen: Callable[[float], Store | TimedStore] | None = None,
        clock: Clock | None = None,
        agreement: Mapping[str, str] | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.prefix = prefix
        self.interface = interface
        self._reopen = reopen
        self._clock = Clock() if clock is None else clock
        self._agreement = dict(agreement or {})
        self.host = ""
        """Address where this node listens, set by `meet`."""
        self._generation_met: int | None = None
        self._life: str | None = None

    def meet(self, address: str, deadline: float) -> RendezvousResult:
        """Publish this node's address. Blocks until the addresses of all nodes and the secret are known.

        Every address is from a process that takes part in this rendezvous.

        Raises
        ------
        RendezvousError
            If ranks are missing at the deadline (seconds of `time.monotonic`). The message names the missing
            ranks, and a different number of nodes that one of them expects. Also if another process arrives
            as rank 0 later, if the store is lost permanently, if nodes on several hosts have no secret or
            listen at unreachable addresses, or if nodes do not agree.
        """
        given = secret_in_environment()
        own = Member(address, host_addresses.identity(), given is not None, self._agreement)
        self.host = address.split(" ")[0]
        entry = f"{secrets.token_hex(8)} {msgspec.json.encode(own).decode()}"
        while True:
            try:
                self.store.set(self._size_key(self.rank), str(self.world_size))
                if self.rank == 0:
                    return self._lead(entry, given, deadline)
                return self._follow(entry, given, deadline)
            except RendezvousError:
                raise
            except RuntimeError as error:  # the store's connection is broken
                if self._reopen is None:
                    reason = str(error).partition("\n")[0]
                    raise RendezvousError(f"the rendezvous store was lost: {reason}") from error
            self.store = self._reopen(deadline)

    @property
    def life(self) -> str:
        """Return 16 hexadecimal digits that the members of this rendezvous share with no other process."""
        assert self._life is not None, "there was no rendezvous yet"
        return self._life

    def key(self, name: str) -> str:
        """Return a key of the store for the members. No other rendezvous uses it."""
        assert self._generation_met is not None, "there was no rendezvous yet"
        return self._key(self._generation_met, "own", name)

    def store_of(self, name: str) -> Store:
        """Return a store for the members. Its keys are used by no other rendezvous."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store = self.store.store if isinstance(self.store, TimedStore) else self.store
        return PrefixStore(self.key(name), store)

    def _lead(self, entry: str, given: str | None, deadline: float) -> RendezvousResult:
        generation = self.store.add(self._key("generation"), 1)
        self.store.set(self._key(generation, "member", 0), entry)
        entries = [one.decode() for one in self._await_all(generation, "member", deadline)]
        with ExitStack() as context:
            handover = context.enter_context(Handover()) if given is None else None
            member_list = MemberList(entries, "" if handover is None else handover.name)
            text = msgspec.json.encode(member_list).decode()
            self.store.set(self._key(generation, "members"), text)
            members = read_members(member_list)
            if handover is None:
                assert given is not None
                return self._result(generation, members, given, text)
            self.store.set(self._key(generation, "has_secret", 0), "")
            self._await_all(generation, "has_secret", deadline, handover.serve)
            return self._result(generation, members, handover.secret, text)

    def _follow(self, entry: str, given: str | None, deadline: float) -> RendezvousResult:
        entered = 0
        while True:
            generation = self._generation()
            if generation > entered:
                self.store.set(self._key(generation, "member", self.rank), entry)
                entered = generation
            elif entered and self.store.check([self._key(entered, "members")]):
                text = self.store.get(self._key(entered, "members")).decode("utf-8", "replace")
                member_list = read_member_list(text)
                if self._is_in(member_list, entry):
                    members = read_members(member_list)
                    if given is None:
                        given = take_secret(member_list.offer, deadline)
                        self.store.set(self._key(entered, "has_secret", self.rank), "")
                    return self._result(entered, members, given, text)
            if self._clock.now() >= deadline:
                raise self._missing(self._absent(entered))
            self._clock.sleep(_POLL_SECONDS)

    def _is_in(self, member_list: MemberList, entry: str) -> bool:
        return len(member_list.members) == self.world_size and member_list.members[self.rank] == entry

    def _await_all(
        self, generation: int, kind: str, deadline: float, meanwhile: Callable[[], None] = lambda: None
    ) -> list[bytes]:
        """Wait, as rank 0, until every rank has written its key. Returns the values."""
        keys = [self._key(generation, kind, rank) for rank in range(self.world_size)]
        while not self.store.check(keys):
            if self._generation() != generation:
                raise RendezvousError(
                    "another process has come as rank 0 after this one; this process belongs to an earlier "
                    "start of the job, or rank 0 was started twice"
                )
            if self._clock.now() >= deadline:
                raise self._missing([rank for rank, key in enumerate(keys) if not self.store.check([key])])
            meanwhile()
            self._clock.sleep(_POLL_SECONDS)
        return [self.store.get(key) for key in keys]

    def _result(self, generation: int, members: list[Member], secret: str, text: str) -> RendezvousResult:
        self._generation_met = generation
        self._life = hashlib.sha256(text.encode()).hexdigest()[:16]
        # A user's secret is equal for every start of the job. The list of members makes the key different.
        own = hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()
        return RendezvousResult([member.address for member in members], own)

    def _absent(self, generation: int) -> list[int]:
        """Return the ranks that have not arrived in a generation, for a node that waits for it."""
        if not generation or self.store.check([self._key(generation, "members")]):
            return [0]  # rank 0 must open the next generation
        keys = [self._key(generation, "member", rank) for rank in range(self.world_size)]
        # If all have arrived, rank 0 has not written the list yet.
        return [rank for rank, key in enumerate(keys) if not self.store.check([key])] or [0]

    def _generation(self) -> int:
        return self.store.add(self._key("generation"), 0)

    def _missing(self, ranks: list[int]) -> RendezvousError:
        missing = f"{ranks_in_words(ranks)} of {self.world_size} nodes did not come in time"
        for rank in ranks:
            key = self._size_key(rank)
            size = self.store.get(key).decode("utf-8", "replace") if self.store.check([key]) else ""
            if size.isdigit() and size != str(self.world_size):
                return RendezvousError(
                    f"{missing}: a process came as rank {rank} with WORLD_SIZE={size}, and rank {self.rank} "
                    f"has WORLD_SIZE={self.world_size}. Start all processes with the same WORLD_SIZE"
                )
        return RendezvousError(missing)

    def _size_key(self, rank: int) -> str:
        """The key of the number of nodes that a rank expects, which nodes of all sizes share."""
        return f"{self.prefix}/world size of rank {rank}"

    def _key(self, *parts: object) -> str:
        # Processes that expect different numbers of nodes use different keys, so they never meet.
        return "/".join([self.prefix, f"of {self.world_size}", *map(str, parts)])


# Stores stay open until the process ends. Otherwise, a node that arrives early at a second rendezvous might
# connect to the first one's store while it is being closed.
_stores: dict[tuple[str, int], Store] = {}


def rendezvous_at(place: Place, deadline: float, agreement: Mapping[str, str] | None = None) -> Rendezvous:
    """Open or connect to the store of torchrun's environment, for this process's next rendezvous."""
    where = place.host, place.port
    hosts = place.rank == 0 and not place.hosted

    def forget() -> None:
        _stores.pop(where, None)

    def connect(deadline: float) -> TimedStore:
        if where not in _stores:
            _stores[where] = open_store(*where, hosts=hosts, deadline=deadline)
        return TimedStore(_stores[where], deadline, forget)

    def reopen(deadline: float) -> TimedStore:
        forget()
        return connect(deadline)

    return Rendezvous(
        connect(deadline),
        place.rank,
        place.world_size,
        "adaps",
        interface=place.interface,
        reopen=None if hosts else reopen,
        agreement=agreement,
    )
