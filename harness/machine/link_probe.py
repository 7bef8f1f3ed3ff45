"""What links between namespaces are really like: a ping and a bulk transfer, right before a run."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

from adabench.harness.machine.namespaces import address, enter

__all__ = ["Probe", "bulk_bits_per_second", "ping_seconds", "probe_link"]

_PORT = 5001
_PINGS = 100
_CHUNK = 1 << 20
_WARM_SECONDS, _BULK_SECONDS = 0.1, 0.3
_PATIENCE_SECONDS = 10.0


class Probe(NamedTuple):
    """A link as TCP sees it."""

    round_trip_ms: float
    gbit_per_second: float


def probe_link(namespaces: Sequence[str], one: int = 0, other: int = 1) -> Probe:
    """Measure the link between two nodes, the first two without their numbers; takes about half a second.

    Returns
    -------
    Probe
        The median round trip of a byte there and back, and the rate of one TCP connection once it is warm.
    """
    # Sockets belong to the namespace that their thread was in when it made them; that thread ends here.
    with ThreadPoolExecutor(1) as elsewhere:
        near, far = elsewhere.submit(_connection, namespaces, one, other).result()
    with near, far:
        return Probe(1e3 * _ping(near, far), 1e-9 * _bulk(near, far))


def ping_seconds(link: socket.socket) -> float:
    """The median of round trips of a byte, which the other end sends back as it comes."""
    seconds = []
    for _ in range(_PINGS):
        start = time.perf_counter()
        link.sendall(b"?")
        link.recv(1)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def bulk_bits_per_second(link: socket.socket) -> float:
    """Bits per second that arrive, once it is warm, while the other end, told to, sends all it can."""
    link.sendall(b"!")
    start = time.perf_counter()
    warm, end = start + _WARM_SECONDS, start + _WARM_SECONDS + _BULK_SECONDS
    return _arriving(link, start, warm, end)


def _connection(namespaces: Sequence[str], one: int, other: int) -> tuple[socket.socket, socket.socket]:
    enter(namespaces[one])
    with socket.create_server((address(one), _PORT)) as server:
        enter(namespaces[other])
        far = socket.create_connection((address(one), _PORT), timeout=_PATIENCE_SECONDS)
        near, _ = server.accept()
    for end in (near, far):
        end.settimeout(_PATIENCE_SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def _ping(near: socket.socket, far: socket.socket) -> float:
    """Seconds there and back."""

    def answer() -> None:
        for _ in range(_PINGS):
            far.sendall(far.recv(1))

    thread = threading.Thread(target=answer)
    thread.start()
    seconds = ping_seconds(near)
    thread.join()
    return seconds


def _bulk(near: socket.socket, far: socket.socket) -> float:
    """Bits per second that arrive while the sender sends all it can."""
    start = time.perf_counter()
    warm, end = start + _WARM_SECONDS, start + _WARM_SECONDS + _BULK_SECONDS

    def send() -> None:
        chunk = bytes(_CHUNK)
        while time.perf_counter() < end:
            near.sendall(chunk)
        near.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    rate = _arriving(far, start, warm, end)
    into = bytearray(_CHUNK)
    while far.recv_into(into):
        pass
    thread.join()
    return rate


def _arriving(link: socket.socket, start: float, warm: float, end: float) -> float:
    """Bits per second from when it is warm until the end."""
    into = bytearray(_CHUNK)
    received, before, since = 0, 0, start
    while (now := time.perf_counter()) < end:
        received += link.recv_into(into)
        if now < warm:
            before, since = received, time.perf_counter()
    return 8 * (received - before) / (time.perf_counter() - since)
