"""One cell of the fault matrix: one process of a cluster meets a fault while all processes are in a phase.

``python -m tests.integration.faults.cell FAULT PHASE NODES`` prints the outcome as JSON.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import psutil

import adaps
from adabench.harness.machine.process import adopt_orphans
from tests.conftest import free_port
from tests.integration.faults.forks import Forks
from tests.integration.faults.network import Cable
from tests.integration.faults.rank import PHASES, Orders, live, table, value_at
from tests.processes import text_of_fork

FAULTS = {
    "SIGKILL": "killed by SIGKILL",
    "SIGSTOP": "stopped by SIGSTOP, continued when the other nodes have ended",
    "link down": "its link between two network namespaces is cut",
    "link slow": "its link is limited to 8 Mbit/s",
    "exception": "an exception in its worker's code",
    "hang": "its worker's code hangs and holds the interpreter's lock",
    "out of memory": "no more memory, because of RLIMIT_AS",
}

_PATIENCE = 240.0
"""Seconds within which each expected event must happen, long enough for a busy machine."""


@dataclass(frozen=True)
class Cell:
    """A fault of one rank during a phase of a cluster with a given number of nodes."""

    fault: str
    phase: str
    nodes: int

    @property
    def victim(self) -> int:
        """The rank that meets the fault; every one has its turn."""
        return (list(FAULTS).index(self.fault) + PHASES.index(self.phase)) % self.nodes

    @property
    def needs_cable(self) -> bool:
        """Whether the nodes have to be in two network namespaces."""
        return self.fault.startswith("link") or self.phase == "two hosts"


@dataclass
class Outcome:
    """The outcome of one cell.

    Attributes
    ----------
    outcome : str
        The error or the end that every survivor met.
    seconds : float
        The seconds from the fault until the last survivor met that outcome.
    problems : list of str
        Descriptions of everything that violates a guarantee.
    """

    fault: str
    phase: str
    nodes: int
    victim: int
    outcome: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def run(cell: Cell, cable: Cable | None) -> Outcome:
    """Run a cell; `cable` joins the victim with all others."""
    outcome = Outcome(cell.fault, cell.phase, cell.nodes, cell.victim)
    with tempfile.TemporaryDirectory(prefix="adaps-fault-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        cluster = _Cluster(cell, cable, folder)
        try:
            cluster.start()
            cluster.await_all(range(cell.nodes), "ready")
            cluster.hit()
            if cell.fault == "link slow":
                _check_completion(cluster, outcome)
            else:
                _check_loss(cluster, outcome)
        except TimeoutError as error:
            outcome.outcome = outcome.outcome or "hangs"
            outcome.problems.append(str(error))
        finally:
            cluster.end()
        outcome.problems += _left_behind(folder)
        outcome.problems += _unrestorable(cell, folder / "saved", cluster.newest_step())
    return outcome


class _Cluster:
    """The processes of a cell."""

    def __init__(self, cell: Cell, cable: Cable | None, folder: Path) -> None:
        self.cell = cell
        self.cable = cable
        self.folder = folder
        self.forks = Forks()
        self.said, self.ended = self.forks.said, self.forks.ended
        self.hit_at = 0.0
        self._told: int | None = None

    @property
    def survivors(self) -> list[int]:
        return [rank for rank in range(self.cell.nodes) if rank != self.cell.victim]

    def start(self) -> None:
        cell, port, cable = self.cell, free_port(), self.cable
        told, self._told = os.pipe()
        for rank in range(cell.nodes):
            ends = ["far" if other == cell.victim else "near" for other in (rank, 0)]
            orders = Orders(
                phase=cell.phase,
                rank=rank,
                nodes=cell.nodes,
                channels=1 + cell.nodes // 4,
                port=port,
                directory=self.folder / "saved",
                told=told,
                victim=rank == cell.victim,
                goes_on=cell.fault == "link slow",
                hangs=cell.fault == "hang",
                raises=_raised(cell.fault) if rank == cell.victim else None,
                namespace=None if cable is None else cable.names[ends[0]],
                master="127.0.0.1" if cable is None else cable.addresses[ends[1]],
            )
            self.forks.start(rank, partial(self._live, orders))
        os.close(told)

    def _live(self, orders: Orders, descriptor: int) -> NoReturn:
        assert self._told is not None
        os.close(self._told)
        tempfile.tempdir = os.environ["TMPDIR"] = str(self.folder / "tmp")
        live(orders, descriptor)

    def hit(self) -> None:
        self.hit_at = time.monotonic()
        if self.cable is not None and self.cell.fault == "link down":
            self.cable.cut()
            self.hit_at = time.monotonic()  # the command takes its time
        elif self.cable is not None and self.cell.fault == "link slow":
            self.cable.slow()
            self.tell()
        else:
            numbers = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
            self.forks.signal(self.cell.victim, numbers.get(self.cell.fault, signal.SIGUSR1))

    def tell(self) -> None:
        if self._told is not None:
            os.close(self._told)
        self._told = None

    def await_all(self, ranks: Iterable[int], word: str) -> None:
        """Read until all these ranks have reported a value of this name."""
        self.forks.await_all(ranks, word, lambda rank: word in self.said[rank], _PATIENCE)

    def await_ends(self, ranks: Iterable[int]) -> None:
        """Wait until these processes end without being killed."""
        self.forks.await_all(ranks, "end", lambda rank: rank in self.ended, _PATIENCE)

    def newest_step(self) -> int:
        """The newest checkpoint that some rank has reported as complete."""
        steps = [said.get("step", 0) for said in self.said.values()]
        return max(steps) if self.cell.phase in ("checkpoint", "two hosts") else 0

    def end(self) -> None:
        self.tell()
        self.forks.close()


def _check_completion(cluster: _Cluster, outcome: Outcome) -> None:
    everybody = range(cluster.cell.nodes)
    cluster.await_ends(everybody)
    outcome.outcome = "all complete, right sums"
    for rank in everybody:
        if cluster.ended[rank] != 0 or cluster.said[rank].get("outcome") != "done":
            outcome.outcome = "fails"
            outcome.problems.append(f"rank {rank}: exit code {cluster.ended[rank]}, {cluster.said[rank]}")
    outcome.seconds = max(said.get("seconds", 0.0) for said in cluster.said.values())


def _check_loss(cluster: _Cluster, outcome: Outcome) -> None:
    cell = cluster.cell
    told = "RendezvousError" if cell.phase == "during restart" else "PeerLost"
    cluster.await_all(cluster.survivors, "outcome")
    said = cluster.said
    named = {f"{said[rank]['outcome']}({said[rank].get('rank')})" for rank in cluster.survivors}
    outcome.outcome = " and ".join(sorted(named))
    outcome.seconds = max(said[rank].get("at", 0.0) - cluster.hit_at for rank in cluster.survivors)
    for rank in cluster.survivors:
        if (said[rank]["outcome"], said[rank].get("rank")) != (told, cell.victim):
            outcome.problems.append(f"rank {rank} was told: {said[rank].get('reason', said[rank])}")
        if silent := said[rank].get("silent"):
            outcome.problems.append(f"rank {rank}: {', '.join(silent)} did not raise PeerLost({cell.victim})")
    if cell.fault == "hang":
        cluster.forks.signal(cell.victim, signal.SIGKILL)
    if cell.fault == "SIGSTOP":
        cluster.forks.signal(cell.victim, signal.SIGCONT)
    cluster.tell()
    if cell.fault == "link down":
        cluster.await_all([cell.victim], "outcome")
        if said[cell.victim]["outcome"] != told or said[cell.victim]["rank"] == cell.victim:
            outcome.problems.append(f"the rank beyond the cable was told {said[cell.victim]}")
    cluster.await_ends(range(cell.nodes))
    codes = {rank: code for rank, code in cluster.ended.items() if rank != cell.victim and code != 3}
    if codes:
        outcome.problems.append(f"exit codes of ranks {codes}; 3 is due")
    killed = [-signal.SIGKILL]
    expected = {"SIGKILL": killed, "hang": killed, "SIGSTOP": [3], "link down": [3]}.get(cell.fault, [1])
    if cluster.ended[cell.victim] not in expected:
        outcome.problems.append(f"the victim's exit code is {cluster.ended[cell.victim]}, not {expected}")


def _left_behind(folder: Path) -> list[str]:
    """Processes and files that the cell's processes left."""
    found = [f"process {process.pid} is left" for process in psutil.Process().children(recursive=True)]
    found += [f"{path} is left" for path in (folder / "tmp").iterdir()]
    with contextlib.suppress(FileNotFoundError):
        found += [f"{path} is left" for path in Path("/dev/shm").iterdir() if "adaps" in path.name]
    return found


def _unrestorable(cell: Cell, directory: Path, newest: int) -> list[str]:
    """The reasons why a new process, as a cluster of one node, cannot restore the checkpoint."""
    text = text_of_fork(partial(_restore, cell, directory, newest))
    return [] if text == "restored" else [f"the checkpoint: {text or 'its reader died'}"]


def _restore(cell: Cell, directory: Path, newest: int) -> str:
    with adaps.Node([table()]) as node:
        step = int(node.restore(directory).extra["step"])
        keys = np.arange(node.num_keys)
        out = np.empty((len(keys), node.table("emb").length), np.float32)
        node.worker(0).pull(keys, out)
        if step < newest:
            raise AssertionError(f"step {newest} was complete; step {step} was restored")
        if not (out == value_at(step, cell.nodes)).all():
            raise AssertionError(f"rows hold {set(out.ravel())} in step {step}")
    return "restored"


def _raised(fault: str) -> type[Exception] | None:
    return {"exception": ZeroDivisionError, "out of memory": MemoryError}.get(fault)


def main() -> None:
    adopt_orphans()  # so that processes that the ranks leave behind are found
    cell = Cell(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    with Cable() if cell.needs_cable else nullcontext() as cable:
        print(json.dumps(asdict(run(cell, cable))))


if __name__ == "__main__":
    main()
