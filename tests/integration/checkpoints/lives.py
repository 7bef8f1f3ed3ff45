"""Processes that are killed while they write to a directory; the next ones continue from what they left.

Each process checks that the state it restores belongs to the step it claims, and that this step is not older
than the last acknowledged one. Then it makes steps, each of which ends with a write, until it is killed. The
processes are forks of this one, so each costs only some hundredths of a second.
"""

import json
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import adaps
from tests.conftest import free_port
from tests.integration.checkpoints.faulty_disk import FaultyDisk, lose, received
from tests.processes import environment_of_rank, exit_code, forked

MOST_CALLS = 60
"""Limit of disk calls; one node makes about 20 for the writes of a step."""
MOST_STEPS = 6
EVICTING = "evicting"
"""Moment of a fault: the process is killed after the call `Life.evicting`."""


class Life:
    """The orders of one process and the pipe for its reports.

    Parameters
    ----------
    directory : Path
        The directory of the checkpoints.
    acknowledged : int
        The last step that an earlier process reported as written.
    report : int
        The file descriptor for the reports of the process.
    fault : tuple of int and str, optional
        The number of the call that kills the process, and the moment: `EVICTING`, or one that `FaultyDisk`
        takes.
    """

    def __init__(
        self, directory: Path, acknowledged: int, report: int, fault: tuple[int, str] | None
    ) -> None:
        self.directory = directory
        self.acknowledged = acknowledged
        self._report = report
        self._fault = fault
        self._evictions = 0

    def steps(self, rank: int, found: int) -> Iterator[int]:
        """Yield the steps after the restored one; each is written when the next one is requested."""
        self._acknowledge(rank, found)  # a checkpoint that was readable once must not be lost later
        if self._fault is not None and self._fault[1] != EVICTING:
            FaultyDisk(*self._fault, self._say)
        for number in range(found + 1, found + 1 + MOST_STEPS):
            yield number
            self._acknowledge(rank, number)

    def evicting(self) -> None:
        """Kill this process if the fault is in this call. The caller has just made nodes evict rows."""
        self._evictions += 1
        if self._fault == (self._evictions, EVICTING):
            os.kill(os.getpid(), signal.SIGKILL)

    def _acknowledge(self, rank: int, step: int) -> None:
        if rank == 0:
            self._say(step)

    def _say(self, message: Any) -> None:
        os.write(self._report, (json.dumps(message) + "\n").encode())


Train = Callable[[Life], None]


def lives_of(train: Train, *moments: str, kills: int, seed: int, nodes: int, folder: str) -> dict[str, int]:
    """Kill processes, and count the kills, all lives, and the acknowledged steps.

    Parameters
    ----------
    train : callable
        Program of a process.
    *moments : str
        Moments of faults in addition to those of `FaultyDisk`. With such a moment, all lives have the same
        number of nodes.
    kills, seed, nodes : int
        The number of processes to kill, the seed of the faults, and the largest number of nodes.
    folder : str
        Where the directories of the checkpoints are made and removed.
    """
    if nodes > 1:
        import torch.distributed  # once, not in every child  # noqa: F401
    numbers = range(nodes if moments else 1, nodes + 1)
    moments = ("before", "amid", "after", *moments)
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        return rounds(Path(directory) / "saved", kills, seed, numbers, moments, train)


def rounds(
    directory: Path, kills: int, seed: int, numbers_of_nodes: range, moments: Sequence[str], train: Train
) -> dict[str, int]:
    """Kill `kills` processes and count the kills, all lives, and the acknowledged steps."""
    numbers = random.Random(seed)
    acknowledged, killed, lives = 0, 0, 0
    while killed < kills:
        nodes = numbers_of_nodes[lives % len(numbers_of_nodes)]
        victim = numbers.randrange(nodes)
        fault = (numbers.randint(1, MOST_CALLS), numbers.choice(moments))
        lives += 1
        reader, writer = os.pipe()
        port = free_port()
        processes = []
        for rank in range(nodes):
            life = Life(directory, acknowledged, writer, fault if rank == victim else None)
            processes.append(forked(partial(live, train, life, environment_of_rank(rank, nodes, port))))
        os.close(writer)
        with open(reader, "rb") as pipe:
            steps, unsynced = received(pipe.read())
        ends = [exit_code(process) for process in processes]
        acknowledged = max([acknowledged, *steps])
        died = ends[victim] == -signal.SIGKILL
        others = {end for rank, end in enumerate(ends) if rank != victim}
        if (not died and ends[victim] != 0) or not others <= ({0, 3} if died else {0}):
            raise AssertionError(f"life {lives} of {nodes} nodes, fault {fault}: exit codes {ends}")
        if died:
            killed += 1
            if unsynced is not None:
                lose(unsynced, numbers)
    return {"kills": killed, "lives": lives, "acknowledged": acknowledged}


def live(train: Train, life: Life, environment: Mapping[str, str]) -> int:
    """Live as a process of the cluster; gives its exit code."""
    os.environ.update(environment)
    try:
        train(life)
    except adaps.PeerLost:
        return 3
    return 0
