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

__all__ = ["Probe", "probe_link"]

_PORT = 5001
_PINGS = 100
_CHUNK = 1 << 20
_WARM_SECONDS, _BULK_SECONDS = 0.1, 0.3
_PATIENCE_SECONDS = 10.0


class Probe(NamedTuple):
    """A link as TCP sees it."""

    round_trip_ms: float
    gbit_per_second: float


def probe_link(namespaces: Sequence[str]) -> Probe:
    """Measure the link between the first two nodes; takes about half a second.

    Returns
    -------
    Probe
        The median round trip of a byte there and back, and the rate of one TCP connection once it is warm.
    """
    # Sockets belong to the namespace that their thread was in when it made them; that thread ends here.
    with ThreadPoolExecutor(1) as elsewhere:
        near, far = elsewhere.submit(_connection, namespaces).result()
    with near, far:
        return Probe(1e3 * _ping(near, far), 1e-9 * _bulk(near, far))


def _connection(namespaces: Sequence[str]) -> tuple[socket.socket, socket.socket]:
    enter(namespaces[0])
    with socket.create_server((address(0), _PORT)) as server:
        enter(namespaces[1])
        far = socket.create_connection((address(0), _PORT), timeout=_PATIENCE_SECONDS)
        near, _ = server.accept()
    for one in (near, far):
        one.settimeout(_PATIENCE_SECONDS)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def _ping(near: socket.socket, far: socket.socket) -> float:
    """Seconds there and back."""

    def answer() -> None:
        for _ in range(_PINGS):
            far.sendall(far.recv(1))

    thread = threading.Thread(target=answer)
    thread.start()
    seconds = []
    for _ in range(_PINGS):
        start = time.perf_counter()
        near.sendall(b"?")
        near.recv(1)
        seconds.append(time.perf_counter() - start)
    thread.join()
    return median(seconds)


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
    into = bytearray(_CHUNK)
    received, before, since = 0, 0, start
    while (now := time.perf_counter()) < end:
        received += far.recv_into(into)
        if now < warm:
            before, since = received, time.perf_counter()
    rate = 8 * (received - before) / (time.perf_counter() - since)
    while far.recv_into(into):
        pass
    thread.join()
    return rate
