"""Two nodes of this process over TCP, with an attacker between them who reads and changes messages."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import adaps
from adaps import _core
from adaps.node_lifetime import open_node
from adaps.node_options import NodeSettings
from adaps.rendezvous import RendezvousResult

ROWS, LENGTH = 64, 4


class Between:
    """Carries bytes between node 1 and node 0; `change` is called for each piece on its way to node 0.

    Attributes
    ----------
    seen : bytearray
        All bytes that node 1 has sent.
    change : callable
        A function that maps a piece that node 1 sent to what node 0 receives instead.
    """

    def __init__(self) -> None:
        self.seen = bytearray()
        self.change: Callable[[bytes], bytes] = lambda sent: sent
        self.address = ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]

    def lead_to(self, address: str) -> str:
        """The address that leads node 1 to node 0 through this object."""
        self.address = address
        threading.Thread(target=self._accept, daemon=True).start()
        return f"127.0.0.1 {self._listener.getsockname()[1]}"

    def close(self) -> None:
        for each in self._sockets:
            # Also for the threads that wait in it.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", port_of(self.address)))
                self._sockets += [near, far]
                threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, watched: bool) -> None:
        with contextlib.suppress(OSError):  # one of them has ended
            while piece := source.recv(1 << 16):
                if watched:
                    self.seen += piece
                    piece = self.change(piece)
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)


class _Introduced:
    """A rendezvous of two nodes of this process in which node 1 gets another address for node 0."""

    world_size = 2
    addresses: dict[int, str]

    def __init__(
        self, rank: int, secret: str, shared: dict[int, str], met: threading.Barrier, way: Any
    ) -> None:
        self.rank = rank
        self._secret, self._shared, self._met, self._way = secret, shared, met, way

    def interface(self) -> str:
        return "127.0.0.1"

    def meet(self, address: str, deadline: float) -> RendezvousResult:
        self._shared[self.rank] = address
        self._met.wait(max(deadline - time.monotonic(), 1.0))
        if self.rank == 1:
            return RendezvousResult([self._way(self._shared[0]), self._shared[1]], self._secret)
        return RendezvousResult([self._shared[0], self._shared[1]], self._secret)


@contextlib.contextmanager
def pair(
    way: Callable[[str], str] = lambda address: address,
    secrets: tuple[str, str] = ("the job's own secret", "the job's own secret"),
    seconds: float = 60.0,
    **options: Any,
) -> Iterator[list[_core.Node]]:
    """Nodes 0 and 1; `way` returns the address at which node 1 looks for node 0."""
    shared: dict[int, str] = {}
    met = threading.Barrier(2)
    chosen = NodeSettings(workers=1, channels=1, technique=_core.Technique.STATIC, **options)
    specs = [adaps.Table("emb", ROWS, LENGTH).spec()]

    def one(rank: int) -> _core.Node:
        place: Any = _Introduced(rank, secrets[rank], shared, met, way)
        return open_node(specs, chosen, place, time.monotonic() + seconds)

    with ThreadPoolExecutor(2) as threads:
        opening = [threads.submit(one, rank) for rank in range(2)]
    failed = [error for each in opening if (error := each.exception()) is not None]
    nodes = [each.result() for each in opening if each.exception() is None]
    try:
        if failed:
            raise failed[0]
        yield nodes
    finally:
        for node in nodes:
            node.abandon()


def port_of(address: str) -> int:
    """The TCP port of a node's address."""
    return int(address.split()[1])
