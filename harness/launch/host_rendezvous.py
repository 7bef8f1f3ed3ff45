"""How the harness's processes on several hosts find each other, and where each of them listens."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from adabench.harness.errors import LauncherError, UsageError
from adabench.harness.machine.interfaces import address_named
from adaps.errors import RendezvousError
from adaps.rendezvous import Place, place_in_environment, rendezvous_at

__all__ = ["CONNECT_SECONDS", "Meeting", "host_here", "listen_where", "meet", "place_here"]

CONNECT_SECONDS = 120.0
"""For all ranks to come: schedulers do not start all tasks of a job at once."""


@dataclass(frozen=True)
class Meeting:
    """What a rank knows when all have met.

    Attributes
    ----------
    place : Place
        This rank's.
    address : str
        Where this rank, and whatever runs here, listens.
    leader : tuple of str and int
        Where rank 0 waits for the others.
    secret : str
        Of this meeting.
    listener : socket or None
        Rank 0's.
    """

    place: Place
    address: str
    leader: tuple[str, int]
    secret: str
    listener: socket.socket | None


def host_here() -> str:
    """Tells apart what cannot reach each other over loopback: machines, and network namespaces of one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def place_here() -> Place | None:
    """Which of how many processes this is; None if it is the only one.

    Raises
    ------
    UsageError
        If nothing says so, or what does makes no sense.
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
    """The address where this rank listens, and why there.

    Parameters
    ----------
    place : Place
    listen : str or None
        An interface's name or an address, if the user names one.

    Raises
    ------
    UsageError
        If there is no such interface or address.
    """
    chosen = os.environ.get("ADAPS_LISTEN")
    try:
        if listen is not None:
            return address_named(listen, ":" in place.host), "as --listen says"
        if chosen:
            return address_named(chosen, ":" in place.host), "as ADAPS_LISTEN says"
        if place.one_host:
            return place.interface(), "all ranks are on this host"
        return place.interface(), f"the interface by which MASTER_ADDR={place.host} is reached"
    except RendezvousError as error:
        raise UsageError(str(error)) from error


def meet(place: Place, address: str) -> Meeting:
    """Blocks until all ranks have come.

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
        return Meeting(place, address, (host, int(its_port)), found.secret, listener)
    except RendezvousError as error:
        if listener is not None:
            listener.close()
        raise LauncherError(str(error)) from error
