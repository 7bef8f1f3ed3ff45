"""Launches one run, watches it, and finds out what came of it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from adabench.harness.launch.launcher import Group, Launcher, Outcome, Supervision, Trouble, Unlaunchable
from adabench.harness.machine.scratch import scratch_folder
from adabench.harness.run.spec import (
    RankError,
    RankResult,
    RankState,
    RunSpec,
    error_file,
    read_json,
    result_file,
    state_file,
)
from adabench.results.record import Status

__all__ = ["GRACE_SECONDS", "launch", "purpose"]

# A rank has 30 s to react to SIGTERM; one that hangs in a dead collective is killed sooner.
GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")


def launch(launcher: Launcher, spec: RunSpec, log: Path, supervision: Supervision) -> Outcome:
    """Run one cell once.

    Parameters
    ----------
    launcher : Launcher
        Made ready.
    spec : RunSpec
    log : Path
        All ranks' output is appended to the files of this name that end in ``.out`` and ``.err``.
    supervision : Supervision
    """
    with (
        scratch_folder(purpose(spec)) as folder,
        Path(f"{log}.out").open("ab") as out_file,
        Path(f"{log}.err").open("ab") as err_file,
    ):
        (folder / "tmp").mkdir()
        try:
            group = launcher.begin(spec, folder, out_file, err_file)
        except Unlaunchable as error:
            phase = "launch" if error.status == "failed" else None
            return Outcome(error.status, 0.0, failed_phase=phase, reason=str(error))
        try:
            ended = _watch(group, spec, folder, group.launched_at + supervision.timeout, supervision)
        finally:
            # Also after an exception: the group never outlives this call.
            exit_code = group.end()
            supervision.look(folder, True)
        total = time.monotonic() - group.launched_at
        outcome = _outcome(ended, group, spec, folder, supervision.timeout, exit_code, total)
        killed = outcome.failed_rank if outcome.signal == "SIGKILL" else None
        if killed is not None and group.out_of_memory(killed):
            outcome = replace(
                outcome, status="oom", reason=f"{outcome.reason}: the kernel had run out of memory for it"
            )
        if outcome.reason is not None:
            err_file.write(f"[adabench] {outcome.status}: {outcome.reason}\n".encode())
    return replace(outcome, link=group.link)


@dataclass(frozen=True)
class _Ended:
    """Why the watching stopped, and which ranks had vanished by then without a word."""

    status: Status | None
    lost: list[int]


def purpose(spec: RunSpec) -> str:
    """What a run's scratch folder is for, to whoever finds it."""
    return f"a run of {spec.usecase} with {spec.backend}, launched by process {os.getpid()}"


def _watch(group: Group, spec: RunSpec, folder: Path, deadline: float, supervision: Supervision) -> _Ended:
    lost: list[int] = []
    trouble_since: float | None = None
    while True:
        if group.wait(_POLL_SECONDS) is not None:
            return _Ended(None, lost)
        supervision.look(folder, False)
        if group.trouble is not None:
            return _Ended(None, lost)
        now = time.monotonic()
        if supervision.stopped():
            return _Ended("interrupted", lost)
        if now > deadline:
            return _Ended("timeout", lost)
        state = read_json(state_file(folder, 0), RankState)
        if state is not None:
            supervision.watch(state)
        lost += [rank for rank in group.vanished() if rank not in lost]
        failed = bool(lost) or any(error_file(folder, rank).exists() for rank in range(spec.nodes))
        trouble_since = (trouble_since or now) if failed else None
        if trouble_since is not None and now - trouble_since > GRACE_SECONDS:
            return _Ended(None, lost)


def _outcome(
    ended: _Ended,
    group: Group,
    spec: RunSpec,
    folder: Path,
    timeout: float,
    exit_code: int,
    total: float,
) -> Outcome:
    ranks = range(spec.nodes)
    states = {rank: read_json(state_file(folder, rank), RankState) for rank in ranks}
    phases = {rank: state.phase if state is not None else "launch" for rank, state in states.items()}
    if group.trouble is not None and ended.status != "interrupted":
        return replace(_of_trouble(group.trouble, phases, exit_code), total_seconds=total)
    if ended.status is not None:
        reason = "stopped by the user" if ended.status == "interrupted" else f"killed after {timeout:g} s"
        return Outcome(ended.status, total, failed_phase=phases[0], reason=reason, exit_code=exit_code)
    results = [read_json(result_file(folder, rank), RankResult) for rank in ranks]
    complete = [result for result in results if result is not None]
    if exit_code == 0 and len(complete) == spec.nodes:
        return Outcome("ok", total, exit_code=0, results=complete, left=_left(group, folder))
    return replace(_first_cause(ended, group, folder, phases, exit_code), total_seconds=total)


def _left(group: Group, folder: Path) -> tuple[str, ...]:
    return (*group.left(), *(f"file {path.name}" for path in (folder / "tmp").iterdir()))


def _of_trouble(trouble: Trouble, phases: dict[int, str], exit_code: int) -> Outcome:
    phase = "launch" if trouble.rank is None else phases[trouble.rank]
    return Outcome("failed", 0, phase, trouble.rank, trouble.reason, exit_code)


def _first_cause(
    ended: _Ended, group: Group, folder: Path, phases: dict[int, str], exit_code: int
) -> Outcome:
    """A rank that a signal ended comes first, then the earliest exception; a lost peer is a consequence."""
    errors = [
        error for rank in phases if (error := read_json(error_file(folder, rank), RankError)) is not None
    ]
    silent = {error.rank for error in errors}
    for failure in sorted(group.failures(), key=lambda one: one.time):
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
