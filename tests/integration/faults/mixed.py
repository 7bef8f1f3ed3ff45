"""Mixed load on four nodes, of which two are killed or stopped again and again, for a given time.

Every life of the cluster restores the last checkpoint, works, writes checkpoints and compares their content
with what it must be, until a fault ends it. The victim is replaced by a new process; the others open their
next node in the same process, hundreds of them one after the other, so what a node leaks adds up there:
memory, descriptors and threads of the nodes that are never the victim are measured in each life.

``python -m tests.integration.faults.mixed '{"seconds": 60, "longest_life": 6, "seed": 1}'`` prints what came
of it as JSON. A fault comes after `longest_life` seconds at the latest.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import selectors
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil

import adaps
import adaps.checkpoint  # once, not in every process
from adaps.node import TECHNIQUES
from adaps.rendezvous import open_store
from tests.conftest import free_port
from tests.integration.faults.workload import EVERY, Workload

__all__ = ["main"]

NODES, WORKERS = 4, 2
VICTIMS = (2, 3)
LEAST_FAULTS = 2
"""However long they take, when the machine has other things to do."""

PEER_TIMEOUT = 2.0
PATIENCE = 60.0


@dataclass(frozen=True)
class Orders:
    """What a process is told when it starts; `stop` closes when the time is up."""

    rank: int
    life: int
    port: int
    directory: Path
    report: int
    stop: int


def main() -> None:
    given = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="adaps-mixed-") as folder:
        print(
            json.dumps(
                supervise(Path(folder) / "saved", given["seconds"], given["longest_life"], given["seed"])
            )
        )


# The supervisor


def supervise(directory: Path, seconds: float, longest_life: float, seed: int) -> dict[str, Any]:
    """Start the ranks, hurt and replace victims until the time is up; gives what was measured."""
    numbers = random.Random(seed)
    port = free_port()
    store = open_store("127.0.0.1", port, hosts=True, deadline=time.monotonic() + PATIENCE)
    stop, told = os.pipe()
    watched = Watched()
    life, faults = 0, {"SIGKILL": 0, "SIGSTOP": 0}
    begin = time.monotonic()
    try:
        for rank in range(NODES):
            watched.start(Orders(rank, life, port, directory, -1, stop), [told])
        while True:
            watched.await_all({"life": life})
            left = max(begin + seconds - time.monotonic(), 0.0)
            pause = numbers.uniform(0.0, longest_life)
            if left <= pause and life >= LEAST_FAULTS:
                watched.listen_for(left)
                break
            watched.listen_for(pause)
            fault = numbers.choices(list(faults), [3, 1])[0]
            victim = numbers.choice(VICTIMS)
            faults[fault] += 1
            watched.hit(victim, signal.Signals[fault])
            life += 1
            survivors = [rank for rank in range(NODES) if rank != victim]
            watched.await_all({"lost": victim, "in_life": life - 1}, survivors)
            watched.bury(victim)
            watched.start(Orders(victim, life, port, directory, -1, stop), [told])
        os.close(told)
        watched.await_all({"done": True})
        codes = watched.end()
    finally:
        watched.kill_all()
    del store
    assert codes == [0] * NODES, codes
    return {
        "seconds": time.monotonic() - begin,
        "lives": life + 1,
        "faults": faults,
        "turns": watched.said[0]["turns"],
        "checkpoints": watched.said[0]["turns"] // EVERY,
        "resources": [said for said in watched.history if said["rank"] not in VICTIMS],
    }


class Watched:
    """The processes of all ranks, and what each said last of each thing."""

    def __init__(self) -> None:
        self.processes: dict[int, int] = {}
        self.said: dict[int, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] = []
        self._pipes: dict[int, int] = {}
        self._unread: dict[int, bytes] = {}
        self._doomed: int | None = None  # the rank that may end before the end
        self._selector = selectors.DefaultSelector()

    def start(self, orders: Orders, close: list[int]) -> None:
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            for descriptor in [reader, *close, *self._pipes.values()]:
                os.close(descriptor)
            self._selector.close()
            be_rank(Orders(orders.rank, orders.life, orders.port, orders.directory, writer, orders.stop))
        os.close(writer)
        rank = orders.rank
        self.processes[rank], self._pipes[rank], self._unread[rank] = process, reader, b""
        self.said[rank] = {}
        self._selector.register(reader, selectors.EVENT_READ, rank)

    def await_all(self, wanted: dict[str, Any], ranks: list[int] | None = None) -> None:
        """Read until all these ranks have said this last."""
        deadline = time.monotonic() + PATIENCE

        def missing() -> list[int]:
            asked = range(NODES) if ranks is None else ranks
            return [rank for rank in asked if wanted.items() - self.said[rank].items()]

        while missing():
            if not self._read(deadline - time.monotonic()):
                raise TimeoutError(f"ranks {missing()} did not say {wanted}, but {self.said}")

    def listen_for(self, seconds: float) -> None:
        """Let them work; nothing but resources is to be said meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def hit(self, victim: int, number: signal.Signals) -> None:
        self._doomed = victim
        os.kill(self.processes[victim], number)

    def bury(self, rank: int) -> None:
        os.kill(self.processes[rank], signal.SIGKILL)  # it may only be stopped
        os.waitpid(self.processes.pop(rank), 0)
        pipe = self._pipes.pop(rank)
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)
        os.close(pipe)
        self._doomed = None

    def end(self) -> list[int]:
        return [
            os.waitstatus_to_exitcode(os.waitpid(self.processes.pop(rank), 0)[1]) for rank in range(NODES)
        ]

    def kill_all(self) -> None:
        for rank in list(self.processes):
            self.bury(rank)

    def _read(self, timeout: float) -> bool:
        ready = self._selector.select(max(timeout, 0.0))
        for key, _ in ready:
            rank = key.data
            data = os.read(self._pipes[rank], 1 << 16)
            if not data:
                self._selector.unregister(self._pipes[rank])
                if rank != self._doomed and not self.said[rank].get("done"):
                    raise RuntimeError(f"rank {rank} ended by itself in life {self.said[rank]}")
                continue
            *lines, self._unread[rank] = (self._unread[rank] + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                self.said[rank].update(message)
                if "threads" in message:
                    self.history.append(message)
        return bool(ready)


# A rank


def be_rank(orders: Orders) -> NoReturn:
    """Live until the time is up, through as many nodes as it takes; ends the process."""
    try:
        os.environ.update(
            RANK=str(orders.rank),
            WORLD_SIZE=str(NODES),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(orders.port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        life = orders.life
        while not one_life(orders, life):
            life += 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def one_life(orders: Orders, life: int) -> bool:
    """Whether it went on until the time was up; otherwise a peer was lost."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(life)
    gc.collect()
    measure(orders, life)
    load = Workload(
        NODES, WORKERS, orders.directory, partial(say, orders, life=life), partial(time_is_up, orders)
    )
    try:
        with adaps.Node(
            load.tables(),
            workers=WORKERS,
            channels=1 + life % 3,
            techniques=TECHNIQUES[life % len(TECHNIQUES)],
            peer_timeout=PEER_TIMEOUT,
        ) as node:
            turns = load.live(node)
    except adaps.PeerLost as lost:
        say(orders, lost=lost.rank, in_life=life)
        return False
    say(orders, done=True, turns=turns)
    return True


def time_is_up(orders: Orders) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(orders.stop, selectors.EVENT_READ)
        return bool(selector.select(0))


def measure(orders: Orders, life: int) -> None:
    """Between two nodes, when there is none: what is left of those before."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free, and only kept by the allocator, is no leak
    process = psutil.Process()
    say(
        orders,
        rank=orders.rank,
        measured=life,
        megabytes=process.memory_full_info().uss / 1e6,
        descriptors=process.num_fds(),
        threads=process.num_threads(),
    )


def say(orders: Orders, **message: Any) -> None:
    os.write(orders.report, (json.dumps(message) + "\n").encode())


if __name__ == "__main__":
    main()
