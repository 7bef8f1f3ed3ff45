"""The rendezvous of the harness's processes on several hosts, and the address where each of them listens."""

import os
import socket
import time
from pathlib import Path

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.machine.interfaces import address_named
from adaps.errors import RendezvousError
from adaps.rendezvous import Place, place_in_environment, rendezvous_at

CONNECT_SECONDS = 120.0
"""Seconds within which all ranks must connect: schedulers do not start all tasks of a job at once."""


def host_here() -> str:
    """Identifier of the processes that reach each other over loopback: a machine and a network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def place_here() -> Place | None:
    """Rank and number of the processes that were started together; None if this is the only one.

    Raises
    ------
    UsageError
        If the environment lacks these values, or they make no sense.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise UsageError(
            "--launcher torchrun is for processes that torchrun, srun or mpirun started on every host: "
            "RANK and WORLD_SIZE are not set"
        )
    try:
        return place_in_environment()
    except RendezvousError as error:
        raise UsageError(str(error)) from error


def listen_where(place: Place, listen: str | None) -> tuple[str, str]:
    """The address where this rank listens, and the reason.

    Raises
    ------
    UsageError
        If there is no such interface or address.
    """
    chosen = os.environ.get("ADAPS_LISTEN")
    try:
        if listen is not None:
            return address_named(listen, ":" in place.host), "set by --listen"
        if chosen:
            return address_named(chosen, ":" in place.host), "set by ADAPS_LISTEN"
        if place.one_host:
            return place.interface(), "all ranks are on this host"
        return place.interface(), f"the interface by which MASTER_ADDR={place.host} is reached"
    except RendezvousError as error:
        raise UsageError(str(error)) from error


def meet(place: Place, address: str) -> tuple[tuple[str, int], str, socket.socket | None]:
    """Block until all ranks have connected.

    Returns
    -------
    coordinator : tuple of str and int
        Address and port where rank 0 waits for the other ranks.
    secret : str
        Secret of this rendezvous.
    listener : socket or None
        Socket of rank 0.

    Raises
    ------
    LauncherError
        If some do not within `CONNECT_SECONDS`, or cannot reach or trust each other.
    """
    listener = None
    if place.rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=128)
    port = 0 if listener is None else listener.getsockname()[1]
    deadline = time.monotonic() + CONNECT_SECONDS
    try:
        found = rendezvous_at(place, deadline).meet(f"{address} {port}", deadline)
        host, _, its_port = found.addresses[0].rpartition(" ")
        return (host, int(its_port)), found.secret, listener
    except RendezvousError as error:
        if listener is not None:
            listener.close()
        raise LauncherError(str(error)) from error
