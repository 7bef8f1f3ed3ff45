"""Interfaces of this machine's network, and their addresses."""

import ipaddress
import socket

import psutil

from adabench.harness.errors import UsageError


def interface_of(address: str) -> str | None:
    """The interface of this machine that has an address, if there is one."""
    for name, addresses in _addresses().items():
        if ipaddress.ip_address(address) in addresses:
            return name
    return None


def address_named(text: str, ipv6: bool = False) -> str:
    """The address of an interface, or an address of this machine itself.

    Parameters
    ----------
    text : str
        Name of an interface, or an address.
    ipv6 : bool
        Whether an interface's IPv6 address is preferred.

    Raises
    ------
    UsageError
        If this machine has neither such an interface nor such an address.
    """
    known = _addresses()
    if text in known:
        found = sorted(known[text], key=lambda one: (one.is_link_local, (one.version == 6) != ipv6))
        if not found or found[0].is_link_local:
            raise UsageError(f"the interface {text} has no address that other hosts can reach")
        return str(found[0])
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    if address is None or interface_of(text) is None:
        have = ", ".join(f"{name} ({', '.join(map(str, own))})" for name, own in known.items() if own)
        raise UsageError(f"{text!r} is neither an interface nor an address of this machine, which has {have}")
    return str(address)


def _addresses() -> dict[str, list[ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    return {
        name: [
            ipaddress.ip_address(one.address.partition("%")[0])
            for one in addresses
            if one.family in (socket.AF_INET, socket.AF_INET6)
        ]
        for name, addresses in psutil.net_if_addrs().items()
    }
