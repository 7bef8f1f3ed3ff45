"""How the nodes of a cluster find each other: torchrun's environment and a `torch.distributed.TCPStore`."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

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
    prefix: str  # of all keys in the store


@dataclass(frozen=True)
class Meeting:
    """What every node knows after a rendezvous."""

    addresses: list[str]
    secret: str


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
        prefix=f"adaps/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


class Rendezvous:
    """One meeting of all nodes at a store, under keys that begin with `prefix`."""

    def __init__(self, store: Store, rank: int, world_size: int, prefix: str) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.prefix = prefix

    def meet(self, address: str, deadline: float) -> Meeting:
        """Tell the others this node's address; blocks until everybody's is known.

        Raises
        ------
        RendezvousError
            At the deadline (seconds of `time.monotonic`), naming the ranks that are missing.
        """
        keys = [f"{self.prefix}/address/{rank}" for rank in range(self.world_size)]
        secret_key = f"{self.prefix}/secret"
        if self.rank == 0:
            self.store.set(secret_key, secrets.token_hex(32))
        self.store.set(keys[self.rank], address)
        if not wait_for(self.store, [secret_key, *keys], deadline):
            missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
            raise RendezvousError(f"{_ranks(missing)} of {self.world_size} nodes did not come in time")
        return Meeting(
            addresses=[self.store.get(key).decode() for key in keys],
            secret=self.store.get(secret_key).decode(),
        )


# Open as long as the process lives: a node that comes early to the second meeting must not find the first
# one's store, about to be closed.
_stores: dict[tuple[str, int], Store] = {}
# Every process counts its meetings, so that the n-th nodes of all processes meet.
_meetings: Counter[str] = Counter()


def rendezvous_at(place: Place, deadline: float) -> Rendezvous:
    """Open the store of torchrun's environment, or connect to it, for this process's next meeting."""
    where = place.host, place.port
    if where not in _stores:
        _stores[where] = open_store(*where, hosts=place.rank == 0 and not place.hosted, deadline=deadline)
    prefix = f"{place.prefix}/{_meetings[place.prefix]}"
    _meetings[place.prefix] += 1
    return Rendezvous(_stores[where], place.rank, place.world_size, prefix)


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


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
