"""The program of a rank in a faulty cluster: setup, a checkpoint, and one phase repeated until it ends."""

import contextlib
import ctypes
import os
import re
import resource
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import adaps
from tests.integration.faults import network
from tests.integration.faults.forks import report

PHASES = (
    *("setup", "pull", "push", "wait_sync", "barrier", "checkpoint", "finalize"),
    *("two hosts", "during restart"),
)
PEER_TIMEOUT = 1.5
STALL_TIMEOUT = 2.0
CONNECT_TIMEOUT = 3.0
"""Seconds after which a restarted cluster gives up waiting for the victim."""

TURNS = 5
"""Turns of a rank whose cluster shall continue despite the fault."""

ROWS, LENGTH = 1000, 16
SECRET = secrets.token_hex(32)
"""Of nodes in two network namespaces, which are two hosts to them; made before the ranks are forked."""

_PEER_LOST, _FAILED = 3, 1


@dataclass(frozen=True)
class Orders:
    """The orders that a rank gets before it starts.

    `told` closes when the waiting ranks shall continue: all ranks, in a cluster that continues despite the
    fault; the victim, which has not reached the end when all others have.
    """

    phase: str
    rank: int
    nodes: int
    channels: int
    port: int
    directory: Path
    told: int
    victim: bool
    goes_on: bool
    hangs: bool
    raises: type[Exception] | None
    namespace: str | None
    master: str


def table() -> adaps.Table:
    return adaps.Table("emb", ROWS, LENGTH)


def value_at(step: int, nodes: int) -> float:
    """The value of every row if each rank pushes 1 in each turn until `step`."""
    return float(nodes * (1 + step))


def live(orders: Orders, descriptor: int) -> NoReturn:
    """Run the rank and exit: 0 if all went well, 3 if a peer was lost, 1 after anything else."""
    code, say = _FAILED, partial(report, descriptor)
    try:
        if orders.victim:
            signal.signal(signal.SIGUSR1, lambda number, frame: _break(orders))
        if orders.namespace is not None:
            network.enter(orders.namespace)
            os.environ["ADAPS_SECRET"] = SECRET
        os.environ.update(
            RANK=str(orders.rank),
            WORLD_SIZE=str(orders.nodes),
            MASTER_ADDR=orders.master,
            MASTER_PORT=str(orders.port),
        )
        code = _work(orders, say)
    except BaseException as error:
        if orders.raises is not None and isinstance(error, orders.raises):
            say(outcome=type(error).__name__)
        else:
            traceback.print_exc()
            sys.stderr.flush()
    os._exit(code)


def _work(orders: Orders, say: Callable[..., None]) -> int:
    rank = _Rank(orders, say)
    restarts = orders.phase == "during restart"
    try:
        if restarts:
            with _node(orders, 60.0) as node:
                rank.begin(node)
            say(ready=True)
            if orders.victim or orders.goes_on:
                os.read(orders.told, 1)
        with _node(orders, CONNECT_TIMEOUT if restarts and not orders.goes_on else 60.0) as node:
            rank.resume(node) if restarts else rank.begin(node)
            try:
                rank.run()
            except adaps.PeerLost as lost:
                told = time.monotonic()
                say(
                    outcome="PeerLost",
                    rank=lost.rank,
                    at=told,
                    step=rank.step,
                    reason=str(lost),
                    silent=rank.silent_calls(lost.rank),
                )
                raise
    except adaps.PeerLost:
        return _PEER_LOST
    except adaps.RendezvousError as error:
        missing = [int(number) for number in re.findall(r"\brank (\d+)", str(error))]
        say(
            outcome="RendezvousError",
            rank=missing[0] if missing else None,
            at=time.monotonic(),
            reason=str(error),
        )
        os.read(orders.told, 1)  # the others may still ask the store, which ends with this process
        return _PEER_LOST
    say(outcome="done", step=rank.step, seconds=rank.seconds)
    return 0


def _node(orders: Orders, connect_timeout: float) -> adaps.Node:
    return adaps.Node(
        [table()],
        channels=orders.channels,
        techniques="static",
        peer_timeout=PEER_TIMEOUT,
        stall_timeout=STALL_TIMEOUT if orders.hangs else 1800.0,
        connect_timeout=connect_timeout,
    )


class _Rank:
    """A rank at work in one phase."""

    def __init__(self, orders: Orders, say: Callable[..., None]) -> None:
        self.orders = orders
        self.say = say
        self.step = 0
        self.seconds = 0.0
        self.keys = np.arange(ROWS)
        self.own = self.keys[orders.rank :: orders.nodes].copy()
        self.ones = np.ones((ROWS, LENGTH), np.float32)
        self.out = np.empty((ROWS, LENGTH), np.float32)

    def begin(self, node: adaps.Node) -> None:
        self.node, self.kv = node, node.worker(0)
        self.kv.push(self.keys, self.ones)
        node.checkpoint(self.orders.directory, extra={"step": 0})

    def resume(self, node: adaps.Node) -> None:
        """Go on after a restart, from the checkpoint of `begin`."""
        self.node, self.kv = node, node.worker(0)
        node.restore(self.orders.directory)

    def run(self) -> None:
        turn: Callable[[], None] = getattr(self, f"_{self.orders.phase.replace(' ', '_')}")
        if self.orders.phase == "during restart":
            if not self.orders.goes_on:
                raise AssertionError("the nodes met without the victim")
            self._go_on(turn)
            return
        if self.orders.phase != "finalize":
            self._take(turn, 2)
        self.say(ready=True)
        if self.orders.goes_on:
            os.read(self.orders.told, 1)
            self._go_on(turn)
        elif self.orders.phase != "finalize":
            while True:
                self._take(turn, 1)
                if self.orders.hangs:
                    self.kv.barrier()  # others are missed only where all have to come
        elif self.orders.victim:
            os.read(self.orders.told, 1)  # the others are in close()
            # They have lost this rank. Until it notices, it may still end normally because of messages that
            # they sent earlier.
            with contextlib.suppress(adaps.PeerLost):
                self.kv.pull(self.keys, self.out)
            self.node.close()
        else:
            self.node.close()

    def silent_calls(self, rank: int) -> list[str]:
        """Calls that do not raise `PeerLost` naming the rank, now that it was raised."""
        kv = self.kv
        calls: dict[str, Callable[[], Any]] = {
            "pull": lambda: kv.pull(self.keys, self.out),
            "push": lambda: kv.push(self.keys, self.ones),
            "set": lambda: kv.set(self.keys, self.ones),
            "intent": lambda: kv.intent(self.keys, kv.current_clock + 1),
            "wait_sync": kv.wait_sync,
            "barrier": kv.barrier,
            "begin_setup": kv.begin_setup,
            "end_setup": kv.end_setup,
            "checkpoint": lambda: self.node.checkpoint(self.orders.directory),
            "close": self.node.close,
        }
        if self.orders.phase == "finalize":
            return []  # the node is closed
        return [name for name, call in calls.items() if not _raises(call, rank)]

    def _take(self, turn: Callable[[], None], count: int) -> None:
        for _ in range(count):
            turn()
            self.step += 1

    def _go_on(self, turn: Callable[[], None]) -> None:
        start = time.monotonic()
        if self.orders.phase == "finalize":
            self._push()
            self.step = 1
        else:
            self._take(turn, TURNS)
        self.kv.end_setup()
        pushes = 0 if self.orders.phase in ("setup", "pull", "barrier") else self.step
        expected = float(self.step) if self.orders.phase == "setup" else value_at(pushes, self.orders.nodes)
        self.kv.pull(self.keys, self.out)
        if not (self.out == expected).all():
            raise AssertionError(f"rows hold {set(self.out.ravel())} after {self.step} turns, not {expected}")
        self.node.close()
        self.seconds = time.monotonic() - start

    # One turn of each phase

    def _setup(self) -> None:
        self.kv.begin_setup()
        self.kv.set(self.own, np.full((len(self.own), LENGTH), self.step + 1, np.float32))
        self.kv.end_setup()

    def _pull(self) -> None:
        self.kv.pull(self.keys, self.out)

    def _push(self) -> None:
        self.kv.push(self.keys, self.ones)

    def _wait_sync(self) -> None:
        self.kv.push(self.keys, self.ones, asynchronous=True)
        self.kv.wait_sync()

    def _barrier(self) -> None:
        self.kv.barrier()

    def _checkpoint(self) -> None:
        self.kv.push(self.keys, self.ones)
        try:
            self.node.checkpoint(self.orders.directory, extra={"step": self.step + 1})
        except adaps.CheckpointError as error:
            # A node that fails while it writes tells the others first and then ends with the same error.
            if re.match(r"rank \d+ could not", str(error)) is None or self.orders.victim:
                raise
            self.kv.barrier()

    _two_hosts = _during_restart = _checkpoint

    def _finalize(self) -> None:
        self.node.close()


_hoard: list[bytearray] = []


def _break(orders: Orders) -> NoReturn:
    """Simulate the ordered failure during the work: hang, raise the exception, or run out of memory."""
    while orders.hangs:
        ctypes.PyDLL(None).pause()
    if orders.raises is not None and orders.raises is not MemoryError:
        raise orders.raises("the rank's own mistake")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (4 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for size in (1 << 20, 1 << 14, 1 << 10):
        try:
            while True:
                _hoard.append(bytearray(size))
        except MemoryError:
            continue
    raise MemoryError


def _raises(call: Callable[[], Any], rank: int) -> bool:
    try:
        call()
    except adaps.PeerLost as lost:
        return lost.rank == rank
    return False
