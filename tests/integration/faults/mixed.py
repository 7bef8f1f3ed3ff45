"""Mixed load on four nodes, two of which are killed or stopped repeatedly, for a given time.

Every life of the cluster restores the last checkpoint, works, writes checkpoints and compares their content
with the expected one, until a fault ends it. The victim is replaced by a new process. The others open their
next node in the same process, hundreds of them one after the other, so leaks of a node add up there: the test
measures memory, descriptors and threads of the nodes that are never the victim in each life.

``python -m tests.integration.faults.mixed '{"seconds": 60, "longest_life": 6, "seed": 1}'`` prints the result
as JSON. A fault comes after `longest_life` seconds at the latest.
"""

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
from collections.abc import Callable, Iterable
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
from tests.integration.faults.forks import Forks, report
from tests.integration.faults.workload import EVERY, Workload
from tests.processes import environment_of_rank

NODES, WORKERS = 4, 2
VICTIMS = (2, 3)
LEAST_FAULTS = 2
"""Faults to wait for, however long they take on a busy machine."""

PEER_TIMEOUT = 2.0
PATIENCE = 60.0


@dataclass(frozen=True)
class Orders:
    """The supervisor closes `told` when the time is up; descriptor `stop` of all ranks then is at its end."""

    port: int
    directory: Path
    stop: int
    told: int


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
    """Start the ranks, then kill and replace victims until the time is up; returns the measurements."""
    numbers = random.Random(seed)
    port = free_port()
    store = open_store("127.0.0.1", port, hosts=True, deadline=time.monotonic() + PATIENCE)
    stop, told = os.pipe()
    job = Job(Orders(port, directory, stop, told))
    life, faults = 0, {"SIGKILL": 0, "SIGSTOP": 0}
    begin = time.monotonic()
    try:
        for rank in range(NODES):
            job.start(rank, life)
        while True:
            job.await_all({"life": life}, range(NODES))
            left = max(begin + seconds - time.monotonic(), 0.0)
            pause = numbers.uniform(0.0, longest_life)
            if left <= pause and life >= LEAST_FAULTS:
                job.work_for(left)
                break
            job.work_for(pause)
            fault = numbers.choices(list(faults), [3, 1])[0]
            victim = numbers.choice(VICTIMS)
            faults[fault] += 1
            job.forks.signal(victim, signal.Signals[fault])
            life += 1
            survivors = [rank for rank in range(NODES) if rank != victim]
            job.await_all({"lost": victim, "in_life": life - 1}, survivors)
            job.forks.bury(victim)  # it may only be stopped
            job.start(victim, life)
        os.close(told)
        job.await_all({"done": True}, range(NODES))
        job.forks.await_all(range(NODES), "end", lambda rank: rank in job.forks.ended, PATIENCE)
        codes = dict(job.forks.ended)
    finally:
        job.forks.close()
    del store
    assert codes == dict.fromkeys(range(NODES), 0), codes
    turns = job.forks.said[0]["turns"]
    return {
        "seconds": time.monotonic() - begin,
        "lives": life + 1,
        "faults": faults,
        "turns": turns,
        "checkpoints": turns // EVERY,
        "resources": [said for said in job.resources if said["rank"] not in VICTIMS],
    }


class Job:
    """The processes of all ranks, and the resources that they have measured."""

    def __init__(self, orders: Orders) -> None:
        self.forks = Forks()
        self.resources: list[dict[str, Any]] = []
        self._orders = orders

    def start(self, rank: int, life: int) -> None:
        self.forks.start(rank, partial(be_rank, self._orders, rank, life))

    def await_all(self, wanted: dict[str, Any], ranks: Iterable[int]) -> None:
        """Read until all these ranks have reported these values last."""
        said = self.forks.said
        self._keep(
            self.forks.await_all(
                ranks, f"{wanted}", lambda rank: wanted.items() <= said[rank].items(), PATIENCE
            )
        )

    def work_for(self, seconds: float) -> None:
        """Let the ranks work; none of them may end meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._keep(self.forks.read(left))
            if self.forks.ended:
                raise RuntimeError(f"ranks ended by themselves: {self.forks.ended}, {self.forks.said}")

    def _keep(self, messages: list[dict[str, Any]]) -> None:
        self.resources += [message for message in messages if "threads" in message]


# A rank


def be_rank(orders: Orders, rank: int, life: int, descriptor: int) -> NoReturn:
    """Live until the time is up, through as many nodes as it takes; ends the process."""
    os.close(orders.told)
    say = partial(report, descriptor)
    try:
        os.environ.update(environment_of_rank(rank, NODES, orders.port), TORCHELASTIC_USE_AGENT_STORE="True")
        while not one_life(orders, rank, life, say):
            life += 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def one_life(orders: Orders, rank: int, life: int, say: Callable[..., None]) -> bool:
    """Whether it went on until the time was up; otherwise a peer was lost."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(life)
    gc.collect()
    say(rank=rank, measured=life, **resources())
    load = Workload(NODES, WORKERS, orders.directory, partial(say, life=life), partial(time_is_up, orders))
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
        say(lost=lost.rank, in_life=life)
        return False
    say(done=True, turns=turns)
    return True


def time_is_up(orders: Orders) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(orders.stop, selectors.EVENT_READ)
        return bool(selector.select(0))


def resources() -> dict[str, float]:
    """Resources of this process between two nodes: a node that is gone leaves none."""
    ctypes.CDLL(None).malloc_trim(0)  # memory that is free, and only kept by the allocator, is no leak
    process = psutil.Process()
    return {
        "megabytes": process.memory_full_info().uss / 1e6,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
    }


if __name__ == "__main__":
    main()
