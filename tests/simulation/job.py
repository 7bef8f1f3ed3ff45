"""Jobs whose processes meet, and write and read checkpoints or exports, with the code of real jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from adaps import checkpoint
from adaps.checkpoint import CheckpointWorker, collective, disk_calls, editions, export_reader, table_export
from adaps.checkpoint.table_export import Exporter, Exports
from adaps.errors import AdapsError, CheckpointError, PeerLost
from adaps.rendezvous import Rendezvous, node_rendezvous
from adaps.tables import Table
from tests.simulation.checker import Checker
from tests.simulation.disk import Disk
from tests.simulation.world import Process, Violation, World

__all__ = ["DIRECTORY", "Job", "Simulation", "simulated"]

DIRECTORY = Path("/shared/saved")
CHECKPOINTS, EXPORTS = 2, 4
"""Number of checkpoints or exports that one life of a job must write."""
TABLE = Table("rows", rows=3, length=2)
"""The exported table: a row holds the life that changed it last, and the step of that life."""
PEER_TIMEOUT, CONNECT_TIMEOUT = 8.0, 20.0


class Simulation:
    """A world with what processes share: a disk, a store, connections."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.disk = Disk(self.world)
        self.checker = Checker(self.world, self.disk, DIRECTORY)
        self.store: dict[str, bytes] = {}
        self.clusters: dict[str, Cluster] = {}
        self.jobs: list[Job] = []
        self.world.at_death = self.disk.free

    def lose_power(self) -> None:
        """Everything ends; the store, which was in memory, is another one afterwards."""
        for process in self.world.processes:
            self.world.kill(process)
        self.store = {}
        self.disk.lose_power()
        self.checker.power_was_lost()
        for job in self.jobs:
            job.start()


class Store:
    """A connection to the store, with the calls of `torch.distributed.Store` that a rendezvous makes."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._keys = simulation.store

    def _turn(self) -> dict[str, bytes]:
        self._simulation.world.turn()
        if self._keys is not self._simulation.store:
            raise RuntimeError("Broken pipe")
        return self._keys

    def add(self, key: str, amount: int) -> int:
        keys = self._turn()
        keys[key] = str(int(keys.get(key, b"0")) + amount).encode()
        return int(keys[key])

    def set(self, key: str, value: str) -> None:
        self._turn()[key] = value.encode()

    def check(self, wanted: list[str]) -> bool:
        keys = self._turn()
        return all(key in keys for key in wanted)

    def get(self, key: str) -> bytes:
        while key not in self._turn():
            self._simulation.world.sleep(1.0)
        return self._keys[key]


class Clock(node_rendezvous.Clock):
    """Simulated time; one looks less often than in the real one."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.sleep(25 * seconds)


class Threads:
    """Provides the parts of `threading` that an export needs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> Any:
        me = self._world.me
        return SimpleNamespace(start=lambda: self._world.spawn(f"{name} of {me}", lambda: target(*args), me))

    def Event(self) -> Event:
        return Event(self._world)


class Event:
    """Has the methods of `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self) -> None:
        while not self._is_set:
            self._world.sleep(0.3)


class ChangedRows:
    """Has the methods of `adaps._core.ChangedRows`."""

    def __init__(self, node: SimulatedNode, index: int) -> None:
        self._node = node
        self._told = self._taken = 0
        self._rows: list[tuple[int, int]] = []

    def take(self, everything: bool) -> int:
        self._taken = self._node.step
        changed = self._node.changed.items()
        self._rows = [(row, step) for row, step in changed if everything or step > self._told]
        return len(self._rows)

    def deleted(self) -> list[int]:
        return []

    def read(self, first: int, rows: Any, values: Any) -> None:
        for i in range(len(rows)):
            rows[i], step = self._rows[first + i]
            values[i] = code_of(self._node.life), step

    def settle(self, told: bool) -> None:
        if told:
            self._told = self._taken


def code_of(life: str) -> int:
    """A number that float32 holds."""
    return int(life[:5], 16)


class Cluster:
    """Nodes that are connected with each other, which all have the secret of one meeting."""

    def __init__(self) -> None:
        self.joined: dict[int, Process] = {}
        self.votes: dict[int, dict[int, bool]] = {}
        self.broken = False


class SimulatedNode:
    """Provides the parts of a node and its worker that a `CheckpointWorker` and an `Exporter` need."""

    def __init__(self, simulation: Simulation, rank: int, size: int) -> None:
        self._world = simulation.world
        self._clusters = simulation.clusters
        self.rank = self._rank = rank
        self.world_size = self._size = size
        self.workers = 1
        self.life = ""
        self.step = 0
        self.changed = dict.fromkeys(range(rank, TABLE.rows, size), 0)
        self._store = Store(simulation)
        self._cluster = Cluster()
        self._calls = 0
        self.closed = False
        self.current_clock = 0

    def connect(self, secret: str) -> None:
        self._cluster = self._clusters.setdefault(secret, self._cluster)
        self._cluster.joined[self._rank] = self._world.me
        begun = self._world.now
        while len(self._cluster.joined) < self._size:
            self._world.sleep(0.5)
            if self._world.now - begun > CONNECT_TIMEOUT:
                self._cluster.broken = True
                raise AdapsError("no connection")

    def agree(self, well: bool) -> int | None:
        cluster, number, begun = self._cluster, self._calls, self._world.now
        self._calls += 1
        self._world.turn()
        votes = cluster.votes.setdefault(number, {})
        votes[self._rank] = well
        while len(votes) < self._size:
            late = self._world.now - begun > PEER_TIMEOUT
            if late or cluster.broken or any(process.is_gone for process in cluster.joined.values()):
                cluster.broken = True
                raise PeerLost(0, "a node is lost")
            self._world.sleep(0.3)
        return min((rank for rank, vote in votes.items() if not vote), default=None)

    def check(self) -> None:
        if self._cluster.broken:
            raise PeerLost(0, "a node is lost")

    def barrier(self) -> None:
        self.agree(True)

    def worker(self, index: int) -> SimulatedNode:
        return self

    def tables(self) -> list[Any]:
        return []

    def wait_sync(self) -> None:
        """Everything is known everywhere."""

    waitall = wait_sync

    def skip_to_clock(self, clock: int) -> None:
        self.current_clock = clock

    def post(self, name: str, text: str) -> None:
        self._store.set(f"{self.life}/{name}", text)

    def posted(self, name: str) -> str | None:
        key = f"{self.life}/{name}"
        return self._store.get(key).decode() if self._store.check([key]) else None

    def train(self) -> None:
        """A step, which changes one row of all nodes."""
        self.step += 1
        if (row := self.step % TABLE.rows) in self.changed:
            self.changed[row] = self.step


class Job:
    """A job on some hosts, on each of which an agent restarts a process until it is done.

    As with torchrun, the agents of one kind (c10d) agree on ranks in rounds, and all of them stop their
    processes before a new round; those of the other kind (static) manage their own process only.
    """

    def __init__(self, simulation: Simulation, name: str, hosts: int, agree: bool, exports: bool) -> None:
        self._simulation, self._world, self._name, self._agree = simulation, simulation.world, name, agree
        self._exports = exports
        self.done = False
        self.agents: dict[int, Process] = {}
        self.workers: dict[Process, int] = {}
        self._waiting: set[int] = set()
        self._round = 0
        self._ranks: dict[int, int] = {}
        self._hosts = hosts
        simulation.jobs.append(self)

    def start(self) -> None:
        """Start an agent on each host."""
        self._waiting.clear()
        self.agents.clear()
        for host in range(self._hosts):
            self.start_agent(host)

    def start_agent(self, host: int) -> None:
        self._waiting.discard(host)
        self.agents[host] = self._world.spawn(f"agent {host} of {self._name}", lambda: self._look_after(host))

    def resize(self, hosts: int) -> None:
        """Another number of hosts, from the next round on."""
        if not self._agree or self.done:
            return
        for host in range(hosts, self._hosts):
            self._world.kill(self.agents.pop(host))  # its process continues without it
        grown, self._hosts = range(self._hosts, hosts), hosts
        for host in grown:
            self.start_agent(host)

    def _look_after(self, host: int) -> None:
        while not self.done:
            rank, size = self._join(host)
            if self.done:
                return
            self._world.sleep(self._world.numbers.choice([0.1, 1.0, 4.0]))
            process = self._start_process(rank, size)
            self.workers[process] = host
            joined = self._round
            while not process.is_gone and not self.done and not self._is_over(joined):
                self._world.sleep(0.7)
            self._world.sleep(self._world.numbers.choice([0.1, 3.0]))  # it ends slowly
            self._world.kill(process)
            while not process.ended:
                self._world.sleep(0.5)
            if process.result == "done":
                self.done = True

    def _start_process(self, rank: int, size: int) -> Process:
        return self._world.spawn(f"rank {rank} of {size} of {self._name}", lambda: self._work(rank, size))

    def _join(self, host: int) -> tuple[int, int]:
        if not self._agree:
            return host, self._hosts
        self._waiting.add(host)
        while host in self._waiting and not self.done:
            if self._waiting >= self.agents.keys():
                ranks = self._world.numbers.sample(range(len(self.agents)), len(self.agents))
                self._ranks = dict(zip(sorted(self.agents), ranks, strict=True))
                self._round += 1
                self._waiting.clear()
            else:
                self._world.sleep(0.6)
        return self._ranks.get(host, 0), len(self._ranks)

    def _is_over(self, joined: int) -> bool:
        return self._agree and (bool(self._waiting) or self._round != joined)

    def _work(self, rank: int, size: int) -> str:
        """The actions of a process from its start to its end."""
        node = SimulatedNode(self._simulation, rank, size)
        try:
            life = node.life = self._meet(node, rank, size)
            if self._exports:
                self._export(node)
            else:
                self._write_checkpoints(node, rank, size, life)
            return "done"
        except AdapsError as error:
            return str(error)
        finally:
            node.closed = True
            node._cluster.broken = True

    def _write_checkpoints(self, node: SimulatedNode, rank: int, size: int, life: str) -> None:
        checker = self._simulation.checker
        participant = CheckpointWorker(node, [], rank, size, 1, 0, life)  # type: ignore[arg-type]
        begun, step = self._world.now, 0
        found = checkpoint.exists(DIRECTORY)
        node.barrier()
        if found:
            extra = participant.restore(DIRECTORY).extra
            checker.restores(life, begun, extra)
            step = extra["step"]
        for number in range(step + 1, step + 1 + CHECKPOINTS):
            participant.write(DIRECTORY, {"life": life, "step": number})
            if rank == 0:
                checker.acknowledges(life)
        node.barrier()
        participant.end()

    def _export(self, node: SimulatedNode) -> None:
        begun, checker = self._world.now, self._simulation.checker
        try:
            found = export_reader.load(DIRECTORY, None)[TABLE.name]
        except CheckpointError as error:
            if "holds no complete export" not in str(error):
                raise Violation(f"{self._world.me} cannot read the newest export: {error}") from error
        else:
            checker.loads(begun, lambda life: wrong_with(found, life))
        node.barrier()
        exports = Exports(node, node, [TABLE], node.life)  # type: ignore[arg-type]
        for _ in range(EXPORTS):
            node.train()
            export = Exporter(exports, 0).export(DIRECTORY, None)
            node.train()
            if self._world.numbers.random() < 0.5:
                export.wait()
                if node.rank == 0:
                    checker.acknowledges(node.life)
        export.wait()
        node.barrier()
        exports.end()

    def _meet(self, node: SimulatedNode, rank: int, size: int) -> str:
        if size == 1:
            return f"{self._world.numbers.getrandbits(64):016x}"
        address = f"127.0.0.1 {self._world.me.number}"
        place = Rendezvous(
            Store(self._simulation),  # type: ignore[arg-type]
            rank,
            size,
            self._name,
            reopen=lambda deadline: Store(self._simulation),  # type: ignore[arg-type,return-value]
            clock=Clock(self._world),
        )
        self._simulation.checker.arrives(address)
        meeting = place.meet(address, self._world.now + 40.0)
        self._simulation.checker.met(place.life, rank, address, meeting.addresses)
        node.connect(meeting.secret)
        return place.life


def wrong_with(values: npt.NDArray[np.float32], life: str) -> str | None:
    """Why it is no export of a life, of some step."""
    lives, steps = values.T
    if (lives != code_of(life)).any():
        return f"rows are of {lives}"
    through = int(steps.max())
    expected = [
        max((step for step in range(1, through + 1) if step % TABLE.rows == row), default=0)
        for row in range(TABLE.rows)
    ]
    return None if steps.tolist() == expected else f"rows are of steps {steps}"


@contextlib.contextmanager
def simulated(simulation: Simulation) -> Iterator[None]:
    """Make the code under test use the simulated functions."""
    numbers = random.Random(simulation.world.numbers.random())
    tokens = SimpleNamespace(token_hex=lambda count: f"{numbers.getrandbits(8 * count):0{2 * count}x}")
    core = SimpleNamespace(freeze=lambda node: None, thaw=lambda node: None, ChangedRows=ChangedRows)
    clock = Clock(simulation.world)
    logger = logging.getLogger("adaps")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    editions._locks.clear()
    try:
        with contextlib.ExitStack() as context:
            for name, function in simulation.disk.functions().items():
                context.enter_context(mock.patch.object(disk_calls, name, function))
            for module, name, other in [
                (node_rendezvous, "secrets", tokens),
                (editions, "secrets", tokens),
                (collective, "_core", core),
                (table_export, "_core", core),
                (table_export, "threading", Threads(simulation.world)),
                (table_export, "time", SimpleNamespace(monotonic=clock.now, sleep=clock.sleep)),
            ]:
                context.enter_context(mock.patch.object(module, name, other))
            context.enter_context(mock.patch.dict(os.environ, ADAPS_SECRET="the same on all hosts"))
            yield
    finally:
        logger.setLevel(level)
        editions._locks.clear()
