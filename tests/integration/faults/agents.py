"""Two torchrun agents in two network namespaces; ranks, agents and the cable between them fail at random.

A fault comes at a random moment of the work, and some come while the job is still recovering from the last
one. An agent that ended is started again, as a scheduler does. After every fault the job has to write a
checkpoint with exact sums within `PATIENCE`; a restored one must never be older than one that was complete.

``python -m tests.integration.faults.agents '{"seconds": 60, "longest_life": 6, "seed": 1}'`` prints what came
of it as JSON. It needs root.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from adabench.harness.machine.process import adopt_orphans
from tests.integration.faults import network
from tests.integration.faults.agent_rank import PEER_TIMEOUT, reports_file, stop_file

PATIENCE = 300.0
"""Seconds until the job must work again, long enough for a busy machine."""

FAULTS = {
    "kill rank": "a rank is killed by SIGKILL",
    "stop rank": "a rank is stopped for up to three times the timeout, then continues",
    "cut link": "the cable is cut for up to four times the timeout, then repaired",
    "kill agent": "an agent is killed by SIGKILL, its rank is not killed, and the agent is started again",
    "stop agent": "an agent is stopped for up to four times the timeout, then continues",
    "restart agent": "an agent is ended by SIGTERM and started again",
}
_LOOK = 0.05
_PORT = 29400


@dataclass
class Fault:
    """A fault, its duration in seconds, and how long the job then took until its next checkpoint."""

    kind: str
    end: str
    during_restart: bool
    seconds: float = 0.0
    recovered: float = 0.0


@dataclass
class Job:
    """The two agents, the cable between them, and the reports of their ranks."""

    folder: Path
    cable: network.Cable
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: Counter[str] = field(default_factory=Counter)
    said: list[dict[str, Any]] = field(default_factory=list)
    newest: int = 0
    newest_at: float = 0.0
    problems: list[str] = field(default_factory=list)
    _read: int = 0

    def start(self, end: str) -> None:
        """Start the agent at this end of the cable."""
        here = self.cable.addresses[end]
        hosts = "1" if end == "near" else "0"
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1000000"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.cable.addresses['near']}:{_PORT}"),
            *("--rdzv-conf", f"is_host={hosts},read_timeout=20,keep_alive_interval=2", "--rdzv-id", "soak"),
            *("--local-addr", here, "--monitor-interval", "0.1", "--shutdown-timeout", "5"),
            *("--log-dir", str(self.folder / "torchrun")),
            *("-m", "tests.integration.faults.agent_rank", str(self.folder)),
        ]
        with (self.folder / f"{end}.log").open("ab") as log:
            self.agents[end] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "END": end},
                preexec_fn=lambda: network.enter(self.cable.names[end]),
            )
        self.started[end] += 1

    def look(self) -> None:
        """Read new reports and restart agents that have given up."""
        reports = reports_file(self.folder)
        if reports.exists():
            with reports.open("rb") as file:
                file.seek(self._read)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                self._take(json.loads(line))
        for end, agent in self.agents.items():
            code = agent.poll()
            if code is None:
                continue
            if code == 0 and not stop_file(self.folder).exists():
                self.problems.append(f"the agent at the {end} end ended with code 0 before it was told to")
            if not self.done:
                self.start(end)

    @property
    def done(self) -> bool:
        return any(one.get("ended") == "done" for one in self.said)

    def await_that(self, what: str, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.look()
            if condition():
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come within {seconds:g} s; last said: {self.said[-12:]}")
            time.sleep(_LOOK)

    def work_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.await_that("the end of a pause", lambda: time.monotonic() >= until, seconds + PATIENCE)

    def went_on(self, turn: int, since: float) -> bool:
        """Whether a checkpoint of more turns was complete after that moment."""
        return self.newest > turn and self.newest_at > since

    def ranks(self, end: str | None = None) -> list[int]:
        """Processes of ranks that live, the youngest last."""
        born = [one["process"] for one in self.said if "born" in one and end in (None, one["end"])]
        return [process for process in dict.fromkeys(born) if psutil.pid_exists(process)]

    def _take(self, one: dict[str, Any]) -> None:
        self.said.append(one)
        if "complete" in one:
            if one["complete"] <= self.newest:
                self.problems.append(f"turn {self.newest} was complete before {one}")
            self.newest, self.newest_at = one["complete"], one["at"]
        if "restored" in one and one["restored"] < self.newest:
            self.problems.append(f"turn {self.newest} was complete, and an older one was restored: {one}")
        if one.get("ended") == "failed":
            self.problems.append(str(one))


def main() -> None:
    given = json.loads(sys.argv[1])
    adopt_orphans()  # adopts the ranks of killed agents
    os.environ["ADAPS_SECRET"] = secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="adaps-agents-") as folder, network.Cable() as cable:
        job = Job(Path(folder), cable)
        try:
            outcome = hurt(job, given["seconds"], given["longest_life"], given["seed"])
        except BaseException:
            for end in job.agents:
                log = (job.folder / f"{end}.log").read_text(errors="replace")
                print(f"--- {end}\n{log[-6000:]}", file=sys.stderr)
            raise
        finally:
            for process in psutil.Process().children(recursive=True):
                process.kill()
    print(json.dumps(outcome))


def hurt(job: Job, seconds: float, longest_life: float, seed: int) -> dict[str, Any]:
    """Inject faults until the time is up, then let the job end; returns the measurements."""
    numbers = random.Random(seed)
    begin = time.monotonic()
    for end in job.cable.addresses:
        job.start(end)
    job.await_that("the first checkpoint", lambda: job.newest > 0)
    faults: list[Fault] = []
    while not faults or time.monotonic() < begin + seconds:
        job.work_for(numbers.uniform(0.0, longest_life))
        series = [_random_fault(numbers, during_restart=False)]
        while numbers.random() < 0.4:
            series.append(_random_fault(numbers, during_restart=True))
        for fault in series:
            if fault.during_restart:
                job.work_for(numbers.uniform(0.0, longest_life))
            _meet(job, fault, numbers)
        over, before = time.monotonic(), job.newest
        job.await_that(f"a checkpoint after {series}", partial(job.went_on, before, over))
        for fault in series:
            fault.recovered = job.newest_at - over
        faults += series
        print(f"{over - begin:.0f} s, turn {job.newest}: {series}", file=sys.stderr, flush=True)
        if job.problems:
            break
    stop_file(job.folder).touch()
    job.await_that("the end", lambda: all(agent.poll() == 0 for agent in job.agents.values()))
    orphans = job.ranks()
    if orphans:
        job.await_that("the end of all ranks", lambda: not _living(orphans))
    return {
        "seconds": time.monotonic() - begin,
        "faults": [vars(fault) for fault in faults],
        "ends": Counter(one["ended"] for one in job.said if "ended" in one),
        "lives": sum("born" in one for one in job.said),
        "restored": sum("restored" in one for one in job.said),
        "agents": sum(job.started.values()),
        "turns": job.newest,
        "checkpoints": sum("complete" in one for one in job.said),
        "why": Counter(_gist(one["why"]) for one in job.said if "why" in one).most_common(20),
        "problems": job.problems,
    }


def _random_fault(numbers: random.Random, *, during_restart: bool) -> Fault:
    return Fault(numbers.choice(list(FAULTS)), numbers.choice(("near", "far")), during_restart)


def _meet(job: Job, fault: Fault, numbers: random.Random) -> None:
    """Inject a fault, and undo it if it can be undone."""
    agent = job.agents[fault.end]
    kind = fault.kind
    if kind == "cut link":
        fault.seconds = numbers.uniform(0.1, 4 * PEER_TIMEOUT)
        job.cable.cut()
        try:
            job.work_for(fault.seconds)
        finally:
            job.cable.mend()
    elif kind in ("stop rank", "stop agent"):
        fault.seconds = numbers.uniform(0.1, (3 if kind == "stop rank" else 4) * PEER_TIMEOUT)
        victims = job.ranks(fault.end)[-1:] if kind == "stop rank" else [agent.pid]
        for victim in victims:
            _signal(victim, signal.SIGSTOP)
        job.work_for(fault.seconds)
        for victim in victims:
            _signal(victim, signal.SIGCONT)
    elif kind == "kill rank":
        for victim in job.ranks(fault.end)[-1:]:
            _signal(victim, signal.SIGKILL)
    else:
        agent.send_signal(signal.SIGKILL if kind == "kill agent" else signal.SIGTERM)
        job.await_that("the end of an agent", lambda: job.agents[fault.end] is not agent)


def _signal(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return  # the process has just ended by itself, which serves the same purpose


def _living(processes: list[int]) -> list[int]:
    return [
        process
        for process in processes
        if psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    ]


def _gist(why: str) -> str:
    """A reason without what differs each time."""
    return "".join("#" if letter.isdigit() else letter for letter in why)[:160]


if __name__ == "__main__":
    main()
