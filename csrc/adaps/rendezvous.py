"""How the nodes of a cluster find each other: torchrun's environment and a `torch.distributed.TCPStore`."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from adaps.errors import RendezvousError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

__all__ = ["Meeting", "Place", "Rendezvous", "open_store", "place_in_environment"]

# A blocking call of the store cannot be interrupted: Ctrl-C works between waits of this length.
_PATIENCE = timedelta(milliseconds=200)


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
    rank, world_size = _integer(environment, "RANK"), _integer(environment, "WORLD_SIZE")
    if world_size < 1 or not 0 <= rank < world_size:
        raise RendezvousError(
            f"RANK={rank} and WORLD_SIZE={world_size} do not fit: the rank must be in [0, WORLD_SIZE)"
        )
    if world_size == 1:
        return None
    return Place(
        rank=rank,
        world_size=world_size,
        host=_variable(environment, "MASTER_ADDR"),
        port=_integer(environment, "MASTER_PORT"),
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        prefix=f"adaps/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


class Rendezvous:
    """One meeting of all nodes; every process counts its meetings, so that the n-th nodes of all meet."""

    _meetings: ClassVar[Counter[str]] = Counter()

    def __init__(self, place: Place, deadline: float) -> None:
        """`deadline` is in seconds of `time.monotonic`."""
        self._place = place
        self._deadline = deadline
        self._store = open_store(place.host, place.port, place.rank == 0 and not place.hosted, deadline)
        number = Rendezvous._meetings[place.prefix]
        Rendezvous._meetings[place.prefix] += 1
        self._prefix = f"{place.prefix}/{number}"

    def meet(self, address: str) -> Meeting:
        """Tell the others this node's address; blocks until everybody's is known.

        Raises
        ------
        RendezvousError
            At the deadline, naming the ranks that are missing.
        """
        place = self._place
        keys = [f"{self._prefix}/address/{rank}" for rank in range(place.world_size)]
        secret_key = f"{self._prefix}/secret"
        if place.rank == 0:
            self._store.set(secret_key, secrets.token_hex(32))
        self._store.set(keys[place.rank], address)
        if not wait_for(self._store, [secret_key, *keys], self._deadline):
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise RendezvousError(
                f"{_ranks(missing)} of {place.world_size} did not come to {place.host}:{place.port} in time"
            )
        return Meeting(
            addresses=[self._store.get(key).decode() for key in keys],
            secret=self._store.get(secret_key).decode(),
        )


# Open as long as the process lives: a node that comes early to the second meeting must not find the first
# one's store, about to be closed.
_stores: dict[tuple[str, int], Store] = {}


def open_store(host: str, port: int, hosts: bool, deadline: float) -> Store:
    """Connect to the store at `host`:`port`, which this process creates if it `hosts`.

    Raises
    ------
    RendezvousError
        If the port is in use, or nobody listens there until the deadline.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if (host, port) not in _stores:
        if hosts:
            _check_port_is_free(host, port)
        else:
            _await_listener(host, port, deadline)
        timeout = timedelta(seconds=max(deadline - time.monotonic(), 1.0))
        try:
            # multi_tenant: a process group that the user makes in this process shares the store's server.
            store = TCPStore(
                host, port, is_master=hosts, timeout=timeout, wait_for_workers=False, multi_tenant=True
            )
        except RuntimeError as error:
            role = "cannot be opened" if hosts else "does not answer"
            raise RendezvousError(
                f"the rendezvous store at {host}:{port} {role}: {_first_line(error)}"
            ) from error
        _stores[host, port] = store
    return _stores[host, port]


def wait_for(store: Store, keys: list[str], deadline: float) -> bool:
    """Block until the store has all keys; False at the deadline."""
    from torch.distributed import DistStoreError

    while time.monotonic() < deadline:
        try:
            store.wait(keys, _PATIENCE)
        except DistStoreError:  # not yet
            continue
        return True
    return bool(store.check(keys))


def _check_port_is_free(host: str, port: int) -> None:
    # The store itself would retry until its timeout and then tell no reason.
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise RendezvousError(
            f"rank 0 cannot open the rendezvous store at MASTER_ADDR:MASTER_PORT {host}:{port}: "
            f"{error.strerror}"
        ) from error


def _await_listener(host: str, port: int, deadline: float) -> None:
    while True:
        try:
            with socket.create_connection((host, port), timeout=1.0):
                return
        except socket.gaierror as error:
            raise RendezvousError(f"MASTER_ADDR {host!r} cannot be resolved: {error.strerror}") from error
        except OSError as error:
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"rank 0 did not open the rendezvous store at {host}:{port} in time: "
                    f"{error.strerror or error}"
                ) from error
        # Nobody can tell this process when the port opens; asking again is all there is.
        time.sleep(0.05)


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise RendezvousError(
            f"the environment variable {name} is missing: a cluster needs RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT, as torchrun sets them"
        )
    return value


def _integer(environment: Mapping[str, str], name: str) -> int:
    text = _variable(environment, name)
    try:
        return int(text)
    except ValueError:
        raise RendezvousError(f"the environment variable {name} is {text!r}; it must be an integer") from None


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
