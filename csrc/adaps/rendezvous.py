"""How the nodes of a cluster find each other: torchrun's environment and a `torch.distributed.TCPStore`.

The store may outlive the processes that meet in it: that of torchrun's agent survives restarts, and nothing
in the environment tells one start of the job from the next, for agents count their restarts each for itself.
So the processes agree on it. Whoever comes as rank 0 opens a new generation. The others join it with their
addresses, when they see it; when all have, rank 0 calls the roll, and who is in the roll has met. What older
generations left is never read, and a process that is not in the roll waits for the next generation.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from adaps.errors import RendezvousError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

__all__ = [
    "Meeting",
    "Place",
    "Rendezvous",
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
    hosted: bool  # somebody else (torchrun's agent) holds the store; otherwise rank 0 does


@dataclass(frozen=True)
class Meeting:
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
    )


class Clock:
    """What a rendezvous waits by."""

    def now(self) -> float:
        """Seconds of `time.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


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
    reopen : callable, optional
        Gives another connection, until a deadline, when the one to the store was lost: a process that comes
        early may have found the store of the job's last start, about to end.
    clock : Clock, optional
        What is waited by.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        prefix: str,
        *,
        reopen: Callable[[float], Store] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.prefix = prefix
        self._reopen = reopen
        self._clock = Clock() if clock is None else clock
        self._met: int | None = None

    def meet(self, address: str, deadline: float) -> Meeting:
        """Tell the others this node's address; blocks until everybody's is known.

        Every address was given by a process that came to this very meeting.

        Raises
        ------
        RendezvousError
            At the deadline (seconds of `time.monotonic`), naming the ranks that are missing; if another
            process has come as rank 0 after this one; if the store is lost for good.
        """
        while True:
            try:
                return self._lead(address, deadline) if self.rank == 0 else self._follow(address, deadline)
            except RendezvousError:
                raise
            except RuntimeError as error:  # what a store raises whose connection is broken
                if self._reopen is None:
                    reason = str(error).partition("\n")[0]
                    raise RendezvousError(f"the rendezvous store was lost: {reason}") from error
            self.store = self._reopen(deadline)

    def key(self, name: str) -> str:
        """A key of the store for those who have met, which no other meeting uses."""
        assert self._met is not None, "there was no meeting yet"
        return self._key(self._met, "own", name)

    def _lead(self, address: str, deadline: float) -> Meeting:
        generation = self.store.add(self._key("generation"), 1)
        me = _signature(address)
        self.store.set(self._key(generation, "joined", 0), me)
        joined = [self._key(generation, "joined", rank) for rank in range(self.world_size)]
        while not self.store.check(joined):
            if self._generation() != generation:
                raise RendezvousError(
                    "another process has come as rank 0 after this one, which is of an earlier start of the "
                    "job or was started twice"
                )
            if self._clock.now() >= deadline:
                raise self._missing([rank for rank, key in enumerate(joined) if not self.store.check([key])])
            self._clock.sleep(_PATIENCE)
        members = [self.store.get(key).decode() for key in joined]
        roll = {"members": members, "secret": secrets.token_hex(32)}
        self.store.set(self._key(generation, "roll"), json.dumps(roll))
        return self._meeting(generation, roll)

    def _follow(self, address: str, deadline: float) -> Meeting:
        me = _signature(address)
        joined = 0
        while True:
            generation = self._generation()
            if generation > joined:
                self.store.set(self._key(generation, "joined", self.rank), me)
                joined = generation
            elif joined and self.store.check([self._key(joined, "roll")]):
                roll = json.loads(self.store.get(self._key(joined, "roll")))
                if roll["members"][self.rank] == me:
                    return self._meeting(joined, roll)
            if self._clock.now() >= deadline:
                raise self._missing(self._absent(joined))
            self._clock.sleep(_PATIENCE)

    def _meeting(self, generation: int, roll: dict[str, Any]) -> Meeting:
        self._met = generation
        return Meeting([member.partition(" ")[2] for member in roll["members"]], roll["secret"])

    def _absent(self, generation: int) -> list[int]:
        """Who keeps a generation from being complete, for one that waits for it."""
        if not generation or self.store.check([self._key(generation, "roll")]):
            return [0]  # who would have opened the next one
        keys = [self._key(generation, "joined", rank) for rank in range(self.world_size)]
        # All may have come, but rank 0 is the one to say so.
        return [rank for rank, key in enumerate(keys) if not self.store.check([key])] or [0]

    def _generation(self) -> int:
        return self.store.add(self._key("generation"), 0)

    def _missing(self, ranks: list[int]) -> RendezvousError:
        return RendezvousError(f"{_ranks(ranks)} of {self.world_size} nodes did not come in time")

    def _key(self, *parts: object) -> str:
        # Those of another size of the cluster are another membership, with which nobody of this one meets.
        return "/".join([self.prefix, f"of {self.world_size}", *map(str, parts)])


# Open as long as the process lives: a node that comes early to the second meeting must not find the first
# one's store, about to be closed.
_stores: dict[tuple[str, int], Store] = {}


def rendezvous_at(place: Place, deadline: float) -> Rendezvous:
    """Open the store of torchrun's environment, or connect to it, for this process's next meeting."""
    where = place.host, place.port
    hosts = place.rank == 0 and not place.hosted

    def reopen(deadline: float) -> Store:
        _stores[where] = open_store(*where, hosts=hosts, deadline=deadline)
        return _stores[where]

    store = _stores[where] if where in _stores else reopen(deadline)
    return Rendezvous(store, place.rank, place.world_size, "adaps", reopen=None if hosts else reopen)


def open_store(host: str, port: int, *, hosts: bool, deadline: float) -> Store:
    """Connect to the store at `host`:`port`, which this process creates if it `hosts`.

    Raises
    ------
    RendezvousError
        If the port is in use, or nobody listens there until the deadline.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if not hosts:
        _await_listener(host, port, deadline)
    timeout = timedelta(seconds=max(deadline - time.monotonic(), 1.0))
    try:
        # multi_tenant: a process group that the user makes in this process shares the store's server.
        return TCPStore(
            host, port, is_master=hosts, timeout=timeout, wait_for_workers=False, multi_tenant=True
        )
    except RuntimeError as error:
        reason = "the port is in use" if "EADDRINUSE" in str(error) else str(error).partition("\n")[0]
        verb = "opened" if hosts else "used"
        raise RendezvousError(f"the rendezvous store cannot be {verb} at {host}:{port}: {reason}") from error


def wait_for(store: Store, keys: list[str], deadline: float) -> bool:
    """Block until the store has all keys; False at the deadline."""
    # The store's own wait cannot be interrupted by Ctrl-C and prints a warning when its time is up.
    while not store.check(keys):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PATIENCE)
    return True


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


def _await_listener(host: str, port: int, deadline: float) -> None:
    while True:
        try:
            with socket.create_connection((host, port), timeout=1.0):
                return
        except socket.gaierror as error:
            raise RendezvousError(
                f"the address {host!r} of the rendezvous cannot be resolved: {error.strerror}"
            ) from error
        except OSError as error:
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"nobody opened the rendezvous store at {host}:{port} in time (rank 0 is missing): "
                    f"{error.strerror or error}"
                ) from error
        # Nobody can tell this process when the port opens; asking again is all there is.
        time.sleep(0.05)


def _signature(address: str) -> str:
    """What tells a process that joins from all others, and where it is."""
    return f"{secrets.token_hex(8)} {address}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
