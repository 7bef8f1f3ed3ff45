"""How the nodes of a cluster find each other: torchrun's environment and a `torch.distributed.TCPStore`.

The store may outlive the processes that meet in it: that of torchrun's agent survives restarts, and nothing
in the environment tells one start of the job from the next, for agents count their restarts each for itself.
So the processes agree on it. Whoever comes as rank 0 opens a new generation. The others join it with their
addresses, when they see it; when all have, rank 0 calls the roll, and who is in the roll has met. What older
generations left is never read, and a process that is not in the roll waits for the next generation.

The store is open to whoever reaches its port, so nothing secret is in it. What is read there is believed only
after the handshake of the connections, which proves that both sides know the job's secret, and the same roll.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from adaps.errors import RendezvousError
from adaps.rendezvous import host_addresses
from adaps.rendezvous.job_secret import HOW_TO_SHARE, Handover, secret_in_environment, take_secret
from adaps.rendezvous.timed_store import TimedStore, open_store, wait_for

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

__all__ = [
    "Place",
    "Rendezvous",
    "RendezvousResult",
    "integer_variable",
    "open_store",
    "place_in_environment",
    "rendezvous_at",
    "variable",
    "wait_for",
]

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells every process."""

MAX_NODES = 4096
"""The core has 12 bits for a node's number."""

# Seconds between two looks at the store.
_PATIENCE = 0.02


@dataclass(frozen=True)
class Place:
    """Where this process stands in the cluster, and where the cluster meets."""

    rank: int
    world_size: int
    host: str
    port: int
    hosted: bool  # torchrun's agent runs the store; otherwise rank 0 does
    one_host: bool  # torchrun says that all nodes are on this host

    def interface(self) -> str:
        """Where a node listens if nobody says otherwise: no more of the world can reach it than has to."""
        return (
            host_addresses.LOOPBACK if self.one_host else host_addresses.address_towards(self.host, self.port)
        )


@dataclass(frozen=True)
class RendezvousResult:
    """What every node knows after a rendezvous."""

    addresses: list[str]
    secret: str
    """Of this meeting alone: who holds another one's is of an earlier start of the job, and kept out."""


def place_in_environment(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Read torchrun's variables; None means a cluster of one.

    Raises
    ------
    RendezvousError
        If only some of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, or one makes no sense.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    rank, world_size = integer_variable(environment, "RANK"), integer_variable(environment, "WORLD_SIZE")
    if world_size < 1 or not 0 <= rank < world_size:
        raise RendezvousError(
            f"RANK={rank} and WORLD_SIZE={world_size} do not fit: the rank must be in [0, WORLD_SIZE)"
        )
    if world_size > MAX_NODES:
        raise RendezvousError(f"WORLD_SIZE is {world_size}; at most {MAX_NODES} nodes are possible")
    if world_size == 1:
        return None
    return Place(
        rank=rank,
        world_size=world_size,
        host=variable(environment, "MASTER_ADDR"),
        port=integer_variable(environment, "MASTER_PORT"),
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        one_host=environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"],
    )


class Clock:
    """What a rendezvous waits by."""

    def now(self) -> float:
        """Seconds of `time.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


@dataclass(frozen=True)
class _Introduction:
    """What a node tells the others in the store, which everybody may read, and anybody may have written."""

    address: str
    host: str
    has_secret: bool
    agreement: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str, rank: int) -> _Introduction:
        try:
            told = json.loads(text)
            found = cls(told["address"], told["host"], told["has_secret"], told["agreement"])
        except (ValueError, TypeError, KeyError) as error:
            raise RendezvousError(f"the rendezvous store has {text[:200]!r} as rank {rank}") from error
        right = type(found.address) is type(found.host) is str and type(found.has_secret) is bool
        if not (right and _is_agreement(found.agreement)):
            raise RendezvousError(f"the rendezvous store has {text[:200]!r} as rank {rank}")
        return found


class Rendezvous:
    """Where all nodes meet: a store, in which all keys begin with `prefix`.

    Parameters
    ----------
    store : torch.distributed.Store
        That of all nodes.
    rank, world_size : int
        This node's number, and how many there are.
    prefix : str
        Of all keys.
    interface : callable
        Gives the address where a node listens if nobody says otherwise.
    reopen : callable, optional
        Gives another connection, until a deadline, when the one to the store was lost: a process that comes
        early may have found the store of the job's last start, about to end.
    clock : Clock, optional
        What is waited by.
    agreement : mapping of str to str, optional
        What all nodes have to have alike.
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
        """Where this node listens, once it has come to a meeting."""
        self._met: int | None = None
        self._life: str | None = None

    def meet(self, address: str, deadline: float) -> RendezvousResult:
        """Tell the others this node's address; blocks until everybody's and the job's secret are known.

        Every address was given by a process that came to this very meeting.

        Raises
        ------
        RendezvousError
            At the deadline (seconds of `time.monotonic`), naming the ranks that are missing; if another
            process has come as rank 0 after this one; if the store is lost for good; if nodes on several
            hosts have no secret, or listen where the others cannot reach them; if nodes do not agree.
        """
        given = secret_in_environment()
        own = _Introduction(address, host_addresses.identity(), given is not None, self._agreement)
        self.host = address.split(" ")[0]
        me = f"{secrets.token_hex(8)} {json.dumps(asdict(own))}"
        while True:
            try:
                return (
                    self._lead(me, given, deadline) if self.rank == 0 else self._follow(me, given, deadline)
                )
            except RendezvousError:
                raise
            except RuntimeError as error:  # raised by a store whose connection is broken
                if self._reopen is None:
                    reason = str(error).partition("\n")[0]
                    raise RendezvousError(f"the rendezvous store was lost: {reason}") from error
            self.store = self._reopen(deadline)

    @property
    def life(self) -> str:
        """16 hexadecimal digits that those who have met have in common, and nobody else."""
        assert self._life is not None, "there was no meeting yet"
        return self._life

    def key(self, name: str) -> str:
        """A key of the store for those who have met, which no other meeting uses."""
        assert self._met is not None, "there was no meeting yet"
        return self._key(self._met, "own", name)

    def store_of(self, name: str) -> Store:
        """A store for those who have met, which no other meeting uses."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store = self.store.store if isinstance(self.store, TimedStore) else self.store
        return PrefixStore(self.key(name), store)

    def _lead(self, me: str, given: str | None, deadline: float) -> RendezvousResult:
        generation = self.store.add(self._key("generation"), 1)
        self.store.set(self._key(generation, "joined", 0), me)
        joined = self._await_all(generation, "joined", deadline)
        with ExitStack() as context:
            handover = context.enter_context(Handover()) if given is None else None
            offer = "" if handover is None else handover.name
            roll = json.dumps({"members": [one.decode() for one in joined], "offer": offer})
            self.store.set(self._key(generation, "roll"), roll)
            nodes = _nodes(_read(roll))
            if handover is None:
                assert given is not None
                return self._meeting(generation, nodes, given, roll)
            self.store.set(self._key(generation, "knows", 0), "")
            self._await_all(generation, "knows", deadline, handover.serve)
            return self._meeting(generation, nodes, handover.secret, roll)

    def _follow(self, me: str, given: str | None, deadline: float) -> RendezvousResult:
        joined = 0
        while True:
            generation = self._generation()
            if generation > joined:
                self.store.set(self._key(generation, "joined", self.rank), me)
                joined = generation
            elif joined and self.store.check([self._key(joined, "roll")]):
                text = self.store.get(self._key(joined, "roll")).decode("utf-8", "replace")
                roll = _read(text)
                if self._is_in(roll, me):
                    nodes = _nodes(roll)
                    if given is None:
                        given = take_secret(roll["offer"], deadline)
                        self.store.set(self._key(joined, "knows", self.rank), "")
                    return self._meeting(joined, nodes, given, text)
            if self._clock.now() >= deadline:
                raise self._missing(self._absent(joined))
            self._clock.sleep(_PATIENCE)

    def _is_in(self, roll: dict[str, Any], me: str) -> bool:
        return len(roll["members"]) == self.world_size and roll["members"][self.rank] == me

    def _await_all(
        self, generation: int, what: str, deadline: float, meanwhile: Callable[[], None] = lambda: None
    ) -> list[bytes]:
        """Wait, as rank 0, until every rank has written its key; gives what they wrote."""
        keys = [self._key(generation, what, rank) for rank in range(self.world_size)]
        while not self.store.check(keys):
            if self._generation() != generation:
                raise RendezvousError(
                    "another process has come as rank 0 after this one, which is of an earlier start of the "
                    "job or was started twice"
                )
            if self._clock.now() >= deadline:
                raise self._missing([rank for rank, key in enumerate(keys) if not self.store.check([key])])
            meanwhile()
            self._clock.sleep(_PATIENCE)
        return [self.store.get(key) for key in keys]

    def _meeting(
        self, generation: int, nodes: list[_Introduction], secret: str, roll: str
    ) -> RendezvousResult:
        self._met = generation
        self._life = hashlib.sha256(roll.encode()).hexdigest()[:16]
        # A user's secret is the same for every start of the job; the roll makes the key differ.
        own = hmac.new(secret.encode(), roll.encode(), "sha256").hexdigest()
        return RendezvousResult([node.address for node in nodes], own)

    def _absent(self, generation: int) -> list[int]:
        """Who keeps a generation from being complete, for one that waits for it."""
        if not generation or self.store.check([self._key(generation, "roll")]):
            return [0]  # it has to open the next generation
        keys = [self._key(generation, "joined", rank) for rank in range(self.world_size)]
        # All have come, but rank 0 has not written the roll.
        return [rank for rank, key in enumerate(keys) if not self.store.check([key])] or [0]

    def _generation(self) -> int:
        return self.store.add(self._key("generation"), 0)

    def _missing(self, ranks: list[int]) -> RendezvousError:
        return RendezvousError(f"{_ranks(ranks)} of {self.world_size} nodes did not come in time")

    def _key(self, *parts: object) -> str:
        # Processes that expect another number of nodes count on keys of their own and never meet these.
        return "/".join([self.prefix, f"of {self.world_size}", *map(str, parts)])


def _read(roll: str) -> dict[str, Any]:
    """What rank 0 has written, or somebody else: the store is open."""
    try:
        found: dict[str, Any] = json.loads(roll)
        right = isinstance(found["offer"], str) and all(isinstance(one, str) for one in found["members"])
    except (ValueError, TypeError, KeyError):
        right = False
    if not right:
        raise RendezvousError(f"the rendezvous store has {roll[:200]!r} as the roll of all nodes")
    return found


def _nodes(roll: dict[str, Any]) -> list[_Introduction]:
    nodes = [
        _Introduction.read(member.partition(" ")[2], rank) for rank, member in enumerate(roll["members"])
    ]
    _check(nodes)
    return nodes


def _is_agreement(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(said, str) for said in value.values())


def _check(nodes: Sequence[_Introduction]) -> None:
    """Refuse what cannot work, with the same sentence on every node."""
    without = [rank for rank, node in enumerate(nodes) if not node.has_secret]
    elsewhere = [rank for rank, node in enumerate(nodes) if node.host != nodes[0].host]
    if without and len(without) < len(nodes):
        raise RendezvousError(
            f"{_ranks(without)} of {len(nodes)} nodes {_are(without)} without ADAPS_SECRET or "
            "ADAPS_SECRET_FILE, which the others have: every node needs the same"
        )
    if without and elsewhere:
        raise RendezvousError(
            f"{_ranks(elsewhere)} of {len(nodes)} nodes {_are(elsewhere)} on another host than rank 0, and "
            f"nodes of several hosts need a secret to know each other: {HOW_TO_SHARE}"
        )
    for rank, node in enumerate(nodes):
        for what in (*nodes[0].agreement, *node.agreement):
            first, own = nodes[0].agreement.get(what, "none"), node.agreement.get(what, "none")
            if own != first:
                raise RendezvousError(
                    f"rank {rank} has {what} = {own} and rank 0 has {first}: give every node the same policy"
                )
        host = node.address.split(" ")[0]
        if elsewhere and host_addresses.is_loopback(host):
            raise RendezvousError(
                f"rank {rank} listens at {host}, which nodes on other hosts cannot reach: set listen= or the "
                "environment variable ADAPS_LISTEN to the address of its interface to them"
            )


# Stores stay open until the process ends: otherwise a node that comes early to a second meeting might connect
# to the first one's store while it is being closed.
_stores: dict[tuple[str, int], Store] = {}


def rendezvous_at(place: Place, deadline: float, agreement: Mapping[str, str] | None = None) -> Rendezvous:
    """Open the store of torchrun's environment, or connect to it, for this process's next meeting."""
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


def variable(environment: Mapping[str, str], name: str, together: Sequence[str] = VARIABLES) -> str:
    """Value of an environment variable; RendezvousError if it is missing, naming its companions."""
    value = environment.get(name)
    if not value:
        raise RendezvousError(
            f"the environment variable {name} is missing; a cluster needs {', '.join(together)}"
        )
    return value


def integer_variable(environment: Mapping[str, str], name: str, together: Sequence[str] = VARIABLES) -> int:
    """Value of an environment variable that must be an integer."""
    text = variable(environment, name, together)
    try:
        return int(text)
    except ValueError:
        raise RendezvousError(f"the environment variable {name} is {text!r}; it must be an integer") from None


def _are(ranks: list[int]) -> str:
    return "are" if len(ranks) > 1 else "is"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
