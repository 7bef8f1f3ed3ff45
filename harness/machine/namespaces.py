"""Nodes in separate network namespaces, joined by links that delay packets and limit their rate.

A transport can shape only its own sockets, and other systems have their own. So the network
``namespaces:lan``, or with any other latency and bandwidth, puts each node's process in a namespace that is
connected only by a TUN device. A relay carries packets from device to device: one after the other at the
link's rate, each held for the latency. All sockets are slowed down equally. With ``namespaces:lan:1-2/10``
the link between nodes 1 and 2 has ten times the latency and a tenth of the rate.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

PREFIX = "namespaces:"
"""Prefix of the names of such networks; the rest of the name describes the links."""

# As in csrc/extensions/netns_relay/links.h.
_DEVICE = "link0"
_SUBNET = "10.210.0"
# Any port is free in a new namespace.
_PORT = 29500
_CLONE_NEWNET = 0x40000000
# An editable installation keeps Python in the clone and binaries in site-packages.
_RELAY = Path(sysconfig.get_path("platlib")) / "adabench" / "harness" / "adabench-relay"
_END_SECONDS = 10.0
_SLOW_PAIR = re.compile(r"(\d{1,3})-(\d{1,3})/(\d{1,6}(?:\.\d{1,6})?)")


class NamespacesUnavailable(RuntimeError):
    """Error if this process may not make network namespaces; its text becomes a run's reason."""


class SlowPair(NamedTuple):
    """A pair of nodes with a slower link, and the factor of its slowness."""

    one: int
    other: int
    times: float


class NodeLinks:
    """Namespaces and the relay between them; a context manager that removes them.

    Parameters
    ----------
    link : str
        Latency and bandwidth of each directed pair of nodes: ``lan``, ``slow`` or such as ``0.5ms,2gbit``;
        ``lan:1-2/10`` makes the links of one pair ten times worse.
    nodes : int
        Number of nodes.

    Raises
    ------
    NamespacesUnavailable
        If they cannot be made: that needs root.
    """

    def __init__(self, link: str, nodes: int) -> None:
        try:
            self._relay = subprocess.Popen(
                [str(_RELAY), str(nodes), link],
                stdin=subprocess.PIPE,  # The relay ends when this pipe closes.
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise NamespacesUnavailable(
                f"the relay between network namespaces, {_RELAY}, cannot be started: {error.strerror}"
            ) from error
        self._said = ""
        assert self._relay.stdout is not None
        self.namespaces = self._relay.stdout.readline().split()
        """A file per node, which `enter` opens."""
        if len(self.namespaces) != nodes:
            self._end()
            raise NamespacesUnavailable(f"network namespaces need root and TUN devices: {self._said}")
        self._process = psutil.Process(self._relay.pid)

    def __enter__(self) -> NodeLinks:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def cpu_seconds(self) -> float:
        """CPU seconds of the relay so far, with the kernel's work on its packets."""
        if self._relay.poll() is not None:
            return 0.0
        spent = self._process.cpu_times()
        return float(spent.user + spent.system)

    @property
    def failure(self) -> str | None:
        """Return the reason why the relay ended unexpectedly, if it did."""
        code = self._relay.poll()
        if code is None:
            return None
        self._end()
        return f"the relay between the namespaces ended with exit code {code}: {self._said or 'no message'}"

    def _end(self) -> None:
        if self._relay.stdin is None or self._relay.stdin.closed:
            return
        try:
            _, said = self._relay.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._relay.kill()
            _, said = self._relay.communicate()
        self._said = " ".join(said.split())


def link_of(network: str) -> str | None:
    """``lan`` for ``namespaces:lan``; None for a network without namespaces."""
    return network.removeprefix(PREFIX) if network.startswith(PREFIX) else None


def slow_pair_of(link: str) -> tuple[str, SlowPair | None]:
    """``lan`` and the slow pair for ``lan:1-2/10``; without such a pair, None."""
    usual, colon, exception = link.partition(":")
    found = _SLOW_PAIR.fullmatch(exception)
    if not colon or found is None:
        return link, None
    return usual, SlowPair(int(found[1]), int(found[2]), float(found[3]))


def address(node: int) -> str:
    """The address of a node in its namespace."""
    return f"{_SUBNET}.{node + 1}"


def environment() -> Mapping[str, str]:
    """Environment of torch's libraries in a namespace: the place of the rendezvous, and the device.

    Torchrun's own store is outside, so node 0 holds one inside.
    """
    return {
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(_PORT),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "GLOO_SOCKET_IFNAME": _DEVICE,
        "TP_SOCKET_IFNAME": _DEVICE,
    }


def enter(namespace: str) -> None:
    """Move the calling thread, and all that it starts from now on, to a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace, "rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), namespace)
