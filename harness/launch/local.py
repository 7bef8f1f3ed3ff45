"""Launches one run as its own process group, watches it, and leaves no process behind."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from adabench.harness.launch.fork_server import Fork, ForkServer, ForkServerError
from adabench.harness.launch.group import Failure, failures_file, leftovers_file
from adabench.harness.machine.link_probe import probe_link
from adabench.harness.machine.namespaces import NamespacesUnavailable, NodeLinks, link_of
from adabench.harness.machine.scratch import scratch_folder
from adabench.harness.trial.spec import (
    NETWORK_VARIABLE,
    RankError,
    RankResult,
    RankState,
    TrialSpec,
    error_file,
    result_file,
    state_file,
)
from adabench.results.record import Link, Status

__all__ = ["Outcome", "Supervision", "launch", "launch_unrecorded"]

T = TypeVar("T")

# A rank has 30 s to react to SIGTERM; one that hangs in a dead collective is killed sooner.
GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")


@dataclass(frozen=True)
class Outcome:
    """How a run ended; `results` has an entry per rank if and only if it ended well.

    `left` names processes and temporary files that were still there when all ranks had ended; they are
    removed.
    """

    status: Status
    total_seconds: float
    phase: str | None = None
    rank: int | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    results: list[RankResult] = field(default_factory=list)
    left: tuple[str, ...] = ()
    link: Link | None = None


@dataclass(frozen=True)
class Supervision:
    """What ends a run before its own end, and who is told how far it has come.

    Attributes
    ----------
    timeout : float
        Seconds after which the process group is killed.
    stopped : callable
        Asked ten times per second; once true, the group is killed and the run is `interrupted`.
    watch : callable
        Told rank 0's state whenever it is read.
    """

    timeout: float
    stopped: Callable[[], bool] = lambda: False
    watch: Callable[[RankState], None] = lambda state: None


def launch(server: ForkServer, spec: TrialSpec, log: Path, supervision: Supervision) -> Outcome:
    """Run one cell once.

    Parameters
    ----------
    server : ForkServer
        Started; the run's processes are forks of it.
    spec : TrialSpec
    log : Path
        All ranks' output is appended to the files of this name that end in ``.out`` and ``.err``.
    supervision : Supervision
    """
    link = link_of(spec.network)
    if link is None:
        return _launch(server, spec, log, supervision)
    try:
        links = NodeLinks(link, spec.nodes)
    except NamespacesUnavailable as error:
        return Outcome("skipped", 0.0, reason=str(error))
    with links:
        try:
            probe = probe_link(links.namespaces)
        except OSError as error:
            reason = f"the links between the namespaces cannot be measured: {error}"
            return Outcome("failed", 0.0, phase="launch", reason=reason)
        before = links.cpu_seconds()
        placed = msgspec.structs.replace(spec, namespaces=links.namespaces)
        outcome = _launch(server, placed, log, supervision)
        if links.failure is not None:
            return replace(outcome, status="failed", phase="launch", reason=links.failure, results=[])
        return replace(outcome, link=Link(**probe._asdict(), relay_cpu_seconds=links.cpu_seconds() - before))


def launch_unrecorded(server: ForkServer, spec: TrialSpec, timeout: float) -> Outcome:
    """Run one cell once, for its outcome only: its output is thrown away."""
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        return launch(server, spec, Path(folder) / "log", Supervision(timeout))


def _launch(server: ForkServer, spec: TrialSpec, log: Path, supervision: Supervision) -> Outcome:
    with (
        scratch_folder(_purpose(spec)) as folder,
        Path(f"{log}.out").open("ab") as out_file,
        Path(f"{log}.err").open("ab") as err_file,
    ):
        (folder / "tmp").mkdir()
        launched_at = time.monotonic()
        spec = msgspec.structs.replace(spec, folder=str(folder), launched_at=launched_at)
        spec_file = folder / "spec.json"
        spec_file.write_bytes(msgspec.json.encode(spec))
        oom_kills = _oom_kills()
        try:
            group = server.fork(
                *("adabench.harness.launch.group:run_group", [str(spec_file)], _environment(spec, folder)),
                *(out_file.fileno(), err_file.fileno()),
            )
        except ForkServerError as error:
            return Outcome("failed", 0.0, phase="launch", reason=str(error))
        try:
            ended = _watch(group, spec, folder, launched_at + supervision.timeout, supervision)
        finally:
            # Also after an exception: the group never outlives this call.
            exit_code = group.end()
        total = time.monotonic() - launched_at
        outcome = _outcome(ended, spec, folder, supervision.timeout, exit_code, total)
        if outcome.signal == "SIGKILL" and _oom_kills() > oom_kills:
            outcome = replace(
                outcome, status="oom", reason=f"{outcome.reason}: the kernel had run out of memory for it"
            )
        if outcome.reason is not None:
            err_file.write(f"[adabench] {outcome.status}: {outcome.reason}\n".encode())
    return outcome


@dataclass(frozen=True)
class _Ended:
    """Why the watching stopped, and which ranks had vanished by then without a word."""

    status: Status | None
    lost: list[int]


def _purpose(spec: TrialSpec) -> str:
    return f"a run of {spec.usecase} with {spec.backend}, launched by process {os.getpid()}"


def _environment(spec: TrialSpec, folder: Path) -> dict[str, str | None]:
    environment: dict[str, str | None] = {
        "TMPDIR": str(folder / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
        # Links between namespaces slow down the transport like any other socket.
        NETWORK_VARIABLE: "loopback" if spec.namespaces else spec.network,
    }
    if spec.namespaces:
        # Each is a host of its own to the parameter server, whose nodes then have to be given a secret.
        environment["ADAPS_SECRET_FILE"] = None
        environment["ADAPS_SECRET"] = secrets.token_hex(32)
    return environment


def _watch(group: Fork, spec: TrialSpec, folder: Path, deadline: float, supervision: Supervision) -> _Ended:
    pids: dict[int, int] = {}
    lost: list[int] = []
    trouble_since: float | None = None
    while True:
        if group.wait(_POLL_SECONDS) is not None:
            return _Ended(None, lost)
        now = time.monotonic()
        if supervision.stopped():
            return _Ended("interrupted", lost)
        if now > deadline:
            return _Ended("timeout", lost)
        for rank in range(spec.nodes):
            state = _read(state_file(folder, rank), RankState)
            if state is not None:
                pids[rank] = state.pid
                if rank == 0:
                    supervision.watch(state)
        lost += [rank for rank, pid in pids.items() if rank not in lost and _vanished(folder, rank, pid)]
        failed = bool(lost) or any(error_file(folder, rank).exists() for rank in range(spec.nodes))
        trouble_since = (trouble_since or now) if failed else None
        if trouble_since is not None and now - trouble_since > GRACE_SECONDS:
            return _Ended(None, lost)


def _vanished(folder: Path, rank: int, pid: int) -> bool:
    try:
        alive = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        alive = False
    # The process is looked for first: a rank writes its result before it exits, so a rank that is gone and
    # has not written one never will.
    return not alive and not result_file(folder, rank).exists() and not error_file(folder, rank).exists()


def _outcome(
    ended: _Ended, spec: TrialSpec, folder: Path, timeout: float, exit_code: int, total: float
) -> Outcome:
    ranks = range(spec.nodes)
    states = {rank: _read(state_file(folder, rank), RankState) for rank in ranks}
    phases = {rank: state.phase if state is not None else "launch" for rank, state in states.items()}
    if ended.status is not None:
        reason = "stopped by the user" if ended.status == "interrupted" else f"killed after {timeout:g} s"
        return Outcome(ended.status, total, phase=phases[0], reason=reason, exit_code=exit_code)
    results = [_read(result_file(folder, rank), RankResult) for rank in ranks]
    complete = [result for result in results if result is not None]
    if exit_code == 0 and len(complete) == spec.nodes:
        return Outcome("ok", total, exit_code=0, results=complete, left=_left(folder))
    return replace(_first_cause(ended, folder, phases, exit_code), total_seconds=total)


def _left(folder: Path) -> tuple[str, ...]:
    processes = [f"process {command}" for command in _read(leftovers_file(folder), list[str]) or []]
    return (*processes, *(f"file {path.name}" for path in (folder / "tmp").iterdir()))


def _first_cause(ended: _Ended, folder: Path, phases: dict[int, str], exit_code: int) -> Outcome:
    """A rank that a signal ended comes first, then the earliest exception; a lost peer is a consequence."""
    failures = _read(failures_file(folder), list[Failure]) or []
    errors = [error for rank in phases if (error := _read(error_file(folder, rank), RankError)) is not None]
    silent = {error.rank for error in errors}
    for failure in sorted(failures, key=lambda one: one.time):
        if failure.rank in silent or failure.exit_code in (0, -signal.SIGTERM):
            continue
        name, how = None, f"ended with exit code {failure.exit_code}"
        if failure.exit_code < 0:
            name = signal.Signals(-failure.exit_code).name
            how = f"was killed by {name}"
        reason = f"rank {failure.rank} {how}"
        return Outcome("failed", 0, phases[failure.rank], failure.rank, reason, failure.exit_code, name)
    if errors:
        first = min(errors, key=lambda error: (not error.unavailable, error.kind == "PeerLost", error.at))
        if first.unavailable:
            return Outcome("skipped", 0, first.phase, first.rank, first.message, 1)
        memory = first.kind in _OUT_OF_MEMORY or "allocate memory" in first.message
        reason = f"rank {first.rank}: {first.kind}: {first.message}"
        return Outcome("oom" if memory else "failed", 0, first.phase, first.rank, reason, 1)
    if ended.lost:
        rank = ended.lost[0]
        return Outcome("failed", 0, phases[rank], rank, f"rank {rank} vanished", exit_code)
    reason = f"the process group ended with exit code {exit_code} before any rank reported: see the log"
    return Outcome("failed", 0, "launch", None, reason, exit_code)


def _oom_kills() -> int:
    """How many processes of this machine the kernel has killed for want of memory; 0 if it does not say."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except FileNotFoundError:
        return 0
    return int(counts.get("oom_kill", 0))


def _read(file: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
