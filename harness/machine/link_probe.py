"""Measures a link as TCP sees it: one end sends pings and asks for a bulk transfer, and the other answers."""

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

from adabench.harness.machine.namespaces import address, enter

_PORT = 5001
_PINGS = 100
_CHUNK = 1 << 20
_WARM_SECONDS, _BULK_SECONDS = 0.1, 0.3
_PATIENCE_SECONDS = 10.0
_PING, _SEND = b"?", b"!"


class Probe(NamedTuple):
    """The median round trip of a byte, and the rate of one TCP connection once it is warm."""

    round_trip_ms: float
    gbit_per_second: float


def probe_link(namespaces: Sequence[str], one: int = 0, other: int = 1) -> Probe:
    """Measure the link between two nodes in namespaces; takes about half a second."""
    # Sockets belong to the namespace that their thread was in when it made them. This thread ends here.
    with ThreadPoolExecutor(1) as elsewhere:
        near, far = elsewhere.submit(_connection, namespaces, one, other).result()
    return probe_between(near, far)


def probe_between(near: socket.socket, far: socket.socket) -> Probe:
    """Measure the link between both ends of a connection, and close it."""
    thread = threading.Thread(target=answer, args=(far,))
    thread.start()
    try:
        return ask(near)
    finally:
        thread.join()


def ask(link: socket.socket) -> Probe:
    """Measure the link to an end that answers, and close it."""
    with _prepare(link):
        return Probe(1e3 * _ping_seconds(link), 1e-9 * _bits_per_second(link))


def answer(link: socket.socket) -> None:
    """Send each ping back, and then all that the link carries, until the other end closes it."""
    with _prepare(link):
        while (request := link.recv(1)) == _PING:
            link.sendall(request)
        chunk = bytes(_CHUNK)
        try:
            while request:
                link.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            return  # the other end has received enough


def _prepare(link: socket.socket) -> socket.socket:
    """Set the options of one end of a link that is to be measured."""
    link.settimeout(_PATIENCE_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _connection(namespaces: Sequence[str], one: int, other: int) -> tuple[socket.socket, socket.socket]:
    enter(namespaces[one])
    with socket.create_server((address(one), _PORT)) as server:
        enter(namespaces[other])
        far = socket.create_connection((address(one), _PORT), timeout=_PATIENCE_SECONDS)
        return server.accept()[0], far


def _ping_seconds(link: socket.socket) -> float:
    seconds = []
    for _ in range(_PINGS):
        start = time.perf_counter()
        link.sendall(_PING)
        link.recv(1)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _bits_per_second(link: socket.socket) -> float:
    """Bits per second that arrive once the connection is warm."""
    link.sendall(_SEND)
    start = time.perf_counter()
    warm, end = start + _WARM_SECONDS, start + _WARM_SECONDS + _BULK_SECONDS
    into = bytearray(_CHUNK)
    received, before, since = 0, 0, start
    while (now := time.perf_counter()) < end:
        received += link.recv_into(into)
        if now < warm:
            before, since = received, time.perf_counter()
    return 8 * (received - before) / (time.perf_counter() - since)
