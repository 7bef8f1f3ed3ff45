"""Addresses of this host: its identity, and an address that other nodes can reach."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from pathlib import Path

from adaps.errors import RendezvousError

__all__ = ["LOOPBACK", "address_towards", "identity", "is_loopback", "literal", "split_address"]

LOOPBACK = "127.0.0.1"

# An address that is reserved for documentation (RFC 5737). Nothing is sent to it; it only selects the default
# route.
_ANYWHERE = "203.0.113.1"
_log = logging.getLogger("adaps")
_told: set[str] = set()


def identity() -> str:
    """Return a text that is equal for processes that can reach each other over loopback."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def address_towards(host: str, port: int) -> str:
    """Return this host's address on the interface that leads to `host`. Logs it once.

    Raises
    ------
    RendezvousError
        If `host` cannot be resolved, or no route leads to it.
    """
    if is_loopback(host):
        return literal(host) or LOOPBACK
    found = _resolve(host, port)
    why = f"the interface by which MASTER_ADDR={host} is reached"
    if all(is_loopback(where[0]) for _, where in found):
        # Debian's /etc/hosts maps the host's own name to a loopback address, which other hosts cannot reach.
        found = [(socket.AF_INET, (_ANYWHERE, port))]
        why = (
            "the interface of the default route, "
            f"because MASTER_ADDR={host} is a loopback address on this host"
        )
    problem: OSError | None = None
    for family, where in found:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(where)  # sends nothing
            except OSError as error:
                problem = error
                continue
            address: str = probe.getsockname()[0]
        if address not in _told:
            _told.add(address)
            _log.info("this node listens at %s, %s; listen= or ADAPS_LISTEN choose another one", address, why)
        return address
    assert problem is not None
    if where[0] == _ANYWHERE:
        return LOOPBACK  # a host without a network can only run jobs alone
    raise RendezvousError(
        f"no interface of this host leads to MASTER_ADDR={host} ({problem.strerror}): "
        "set listen= or the environment variable ADAPS_LISTEN to the address that the other nodes reach"
    )


def literal(host: str) -> str | None:
    """Return `host` if it is an address, the loopback address for localhost, and None for other names."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return LOOPBACK if is_loopback(host) else None


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or localhost. Names are not resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def split_address(text: str, name: str) -> tuple[str, int]:
    """Return host and port of ``host``, ``host:port`` or ``[IPv6 address]:port``; port 0 means any port."""
    try:
        return str(ipaddress.IPv6Address(text)), 0
    except ValueError:
        host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, "0"
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{name} is {text!r}; it must be host or host:port, with a port of at most 65535")
    return host.strip("[]"), int(port)


def _resolve(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise RendezvousError(
            f"the address {host!r} of the rendezvous cannot be resolved: {error.strerror}"
        ) from error
    return [(family, where) for family, _, _, _, where in found]  # type: ignore[misc]
