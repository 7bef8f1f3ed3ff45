"""Two network namespaces joined by a cable that can be cut or made slow; needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from adabench.harness.machine import namespaces

RATE = "8mbit"
"""Rate of a slow cable, in each direction."""


class Cable:
    """Two namespaces, "near" and "far", and the cable between them; a context manager that removes them.

    Attributes
    ----------
    names : dict of str to str
        The namespaces by their end of the cable.
    addresses : dict of str to str
        Address of each end.
    """

    def __init__(self) -> None:
        self.names = {end: f"adaps-{os.getpid()}-{end}" for end in ("near", "far")}
        self.addresses = {"near": "10.77.0.1", "far": "10.77.0.2"}

    def __enter__(self) -> Cable:
        try:
            self._lay()
        except subprocess.CalledProcessError:
            self._remove()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()

    def add_ipv6(self) -> dict[str, str]:
        """Give both ends another address, of IPv6."""
        added = {"near": "fd77::1", "far": "fd77::2"}
        for end, name in self.names.items():
            _run("ip", "-n", name, "address", "add", f"{added[end]}/64", "dev", "cable", "nodad")
        return added

    def cut(self) -> None:
        """Drop all packets from now on, without notice."""
        _run("ip", "-n", self.names["far"], "link", "set", "cable", "down")

    def mend(self) -> None:
        """Carry packets again; TCP retransmits the dropped ones."""
        _run("ip", "-n", self.names["far"], "link", "set", "cable", "up")

    def slow(self) -> None:
        """Carry packets at `RATE`."""
        for name in self.names.values():
            shape = ["rate", RATE, "burst", "16kb", "latency", "30s"]
            _run("tc", "-n", name, "qdisc", "add", "dev", "cable", "root", "tbf", *shape)

    def _lay(self) -> None:
        for name in self.names.values():
            _run("ip", "netns", "add", name)
        near, far = self.names.values()
        _run("ip", "-n", near, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", far)
        for end, name in self.names.items():
            _run("ip", "-n", name, "address", "add", f"{self.addresses[end]}/24", "dev", "cable")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "cable", "up")

    def _remove(self) -> None:
        for name in self.names.values():
            if Path(f"/run/netns/{name}").exists():
                _run("ip", "netns", "delete", name)


def enter(namespace: str) -> None:
    """Move the calling process, which must have one thread, to a network namespace."""
    namespaces.enter(f"/run/netns/{namespace}")


def reason_without() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {' and '.join(missing)} of iproute2"
    try:
        with Cable() as cable:
            cable.slow()
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
