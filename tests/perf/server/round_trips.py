"""Pulls from another node, and the same bytes there and back over a plain blocking TCP socket, in turns."""

import os
import socket
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import RANK, Ids


def main(keys: int, length: int, rounds: int, trips: int) -> dict[str, Any]:
    # A core each: where the scheduler puts the threads that wake each other moves the figure fourfold.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[RANK % len(cores)]})
    rows = 100_000
    # Without intent nothing moves: half of the rows stay on the other node.
    tables = [adaps.Table("t", rows=rows, length=length), adaps.Table("note", rows=1, length=3)]
    with adaps.Node(tables, techniques="static") as node:
        kv = node.worker(0)
        out = np.empty((keys, length), dtype=np.float32)
        remote = remote_keys(node, kv, rows, keys)
        kv.barrier()
        sizes = [0.0, 0.0]
        if RANK == 0:
            before = node.stats()
            for _ in range(trips):
                kv.pull(remote, out)
            after = node.stats()
            sizes = [(after[name] - before[name]) / trips for name in ("bytes_sent", "bytes_received")]
        raw = RawPeer(node, kv, *map(round, sizes))
        ratios, pulls, exchanges = [], [], []
        if RANK == 0:
            for _ in range(rounds):
                exchanges.append(timed(trips, raw.round_trip))
                pulls.append(timed(trips, lambda: kv.pull(remote, out)))
                ratios.append(pulls[-1] / exchanges[-1])
        raw.close()
        kv.barrier()
    return {
        "ratio": median(ratios) if ratios else None,
        "pull_microseconds": 1e6 * median(pulls) if pulls else None,
        "raw_microseconds": 1e6 * median(exchanges) if exchanges else None,
        "sent": raw.sent,
        "received": raw.received,
    }


def remote_keys(node: adaps.Node, kv: adaps.Worker, rows: int, keys: int) -> Ids:
    """Keys of table t that a pull finds on the other node."""
    one = np.empty((1, node.table("t").length), dtype=np.float32)
    found: list[int] = []
    candidates = iter(np.random.default_rng(1).permutation(rows))
    while len(found) < keys:
        key = int(next(candidates))
        before = node.stats()["pulled_remote"]
        kv.pull([key], one)
        if node.stats()["pulled_remote"] > before:
            found.append(key)
    return np.array(found)


class RawPeer:
    """Rank 0 sends `sent` bytes and waits for `received`; a thread of rank 1 answers."""

    def __init__(self, node: adaps.Node, kv: adaps.Worker, sent: int, received: int) -> None:
        host, note = os.environ["MASTER_ADDR"], node.table("note").keys([0])
        told = np.empty((1, 3), dtype=np.float32)  # whole numbers of this size are exact
        if RANK == 0:
            with socket.create_server((host, 0)) as server:
                told[:] = server.getsockname()[1], sent, received
                kv.set(note, told)
                kv.barrier()
                self._socket, _ = server.accept()
        else:
            kv.barrier()
            kv.pull(note, told)
            self._socket = socket.create_connection((host, int(told[0, 0])))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent, self.received = int(told[0, 1]), int(told[0, 2])
        self._request, self._answer = bytearray(self.sent), bytearray(self.received)
        self._thread = threading.Thread(target=self._serve)
        if RANK == 1:
            self._thread.start()

    def round_trip(self) -> None:
        self._socket.sendall(self._request)
        self._receive(self._answer)

    def close(self) -> None:
        """Rank 0 ends the exchange, which ends rank 1's thread."""
        if RANK == 0:
            self._socket.shutdown(socket.SHUT_WR)
        else:
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while self._receive(self._request):
            self._socket.sendall(self._answer)

    def _receive(self, into: bytearray) -> bool:
        view = memoryview(into)
        while len(view):
            count = self._socket.recv_into(view)
            if count == 0:
                return False
            view = view[count:]
        return True


def timed(count: int, call: Callable[[], object]) -> float:
    """Median seconds of a call."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
