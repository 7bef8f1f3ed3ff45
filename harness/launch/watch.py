"""Launches one run, watches it, and determines its outcome."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from adabench.harness.launch.launcher import (
    Failure,
    Group,
    Launcher,
    Outcome,
    Supervision,
    Unlaunchable,
    run_files,
)
from adabench.harness.launch.process_group import failures_file, left_file
from adabench.harness.run.spec import (
    RankError,
    RankResult,
    RankState,
    TrialSpec,
    error_file,
    read_told,
    result_file,
    state_file,
)
from adabench.results.record import Status

__all__ = ["GRACE_SECONDS", "launch", "purpose"]

GRACE_SECONDS = 5.0
"""Seconds from the first failure to the end of all: a rank in a dead collective ignores SIGTERM for 30 s."""
_POLL_SECONDS = 0.1
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")


def launch(launcher: Launcher, spec: TrialSpec, log: Path | None, supervision: Supervision) -> Outcome:
    """Run one cell once.

    Parameters
    ----------
    launcher : Launcher
        Prepared.
    spec : TrialSpec
    log : Path or None
        All ranks' output is appended to the files of this name that end in ``.out`` and ``.err``, or
        discarded.
    supervision : Supervision
    """
    with run_files(purpose(spec), log) as files:
        try:
            group = launcher.begin(spec, files)
        except Unlaunchable as error:
            phase = "launch" if error.status == "failed" else None
            return Outcome(error.status, 0.0, phase=phase, reason=str(error))
        try:
            ended = _watch(group, spec, files.folder, supervision)
        finally:
            # Also after an exception: the group never outlives this call.
            exit_code = group.end()
            supervision.look(files.folder, True)
        total = time.monotonic() - group.launched_at
        outcome = _outcome(ended, group, spec, files.folder, exit_code)
        if outcome.signal == "SIGKILL" and outcome.rank is not None and group.out_of_memory(outcome.rank):
            outcome = replace(
                outcome, status="oom", reason=f"{outcome.reason}: the kernel had run out of memory for it"
            )
        if outcome.reason is not None:
            files.err.write(f"[adabench] {outcome.status}: {outcome.reason}\n".encode())
    return replace(outcome, total_seconds=total, link=group.link)


@dataclass(frozen=True)
class _Ended:
    """Ranks that had vanished when the watching stopped, and the reason, unless the run ended by itself."""

    lost: list[int]
    status: Status | None = None
    reason: str | None = None


def purpose(spec: TrialSpec) -> str:
    """Description of a run's scratch folder for users who find it."""
    return f"a run of {spec.usecase} with {spec.backend}, launched by process {os.getpid()}"


def _watch(group: Group, spec: TrialSpec, folder: Path, supervision: Supervision) -> _Ended:
    lost: list[int] = []
    failed_since: float | None = None
    while True:
        if group.wait(_POLL_SECONDS) is not None:
            return _Ended(lost)
        supervision.look(folder, False)
        if group.trouble is not None:
            return _Ended(lost)
        now = time.monotonic()
        if supervision.stopped():
            return _Ended(lost, "interrupted", "stopped by the user")
        if now > group.launched_at + supervision.timeout:
            return _Ended(lost, "timeout", f"killed after {supervision.timeout:g} s")
        state = read_told(state_file(folder, 0), RankState)
        if state is not None:
            supervision.watch(state)
        lost += [rank for rank in group.vanished() if rank not in lost]
        failed = bool(lost) or any(error_file(folder, rank).exists() for rank in range(spec.nodes))
        failed_since = (failed_since or now) if failed else None
        if failed_since is not None and now - failed_since > GRACE_SECONDS:
            return _Ended(lost)


def _outcome(ended: _Ended, group: Group, spec: TrialSpec, folder: Path, exit_code: int) -> Outcome:
    """The outcome of a run that has ended, without its duration."""
    ranks = range(spec.nodes)
    states = {rank: read_told(state_file(folder, rank), RankState) for rank in ranks}
    phases = {rank: state.phase if state is not None else "launch" for rank, state in states.items()}
    trouble = group.trouble
    if trouble is not None and ended.status != "interrupted":
        phase = "launch" if trouble.rank is None else phases[trouble.rank]
        return Outcome("failed", 0, phase, trouble.rank, trouble.reason, exit_code)
    if ended.status is not None:
        return Outcome(ended.status, 0, phase=phases[0], reason=ended.reason, exit_code=exit_code)
    results = [read_told(result_file(folder, rank), RankResult) for rank in ranks]
    complete = [result for result in results if result is not None]
    if exit_code == 0 and len(complete) == spec.nodes:
        left = [name for group in ranks for name in read_told(left_file(folder, group), list[str]) or []]
        return Outcome("ok", 0, exit_code=0, results=complete, left=tuple(left))
    return _first_cause(ended, folder, phases, exit_code)


def _first_cause(ended: _Ended, folder: Path, phases: dict[int, str], exit_code: int) -> Outcome:
    """A rank that a signal ended comes first, then the earliest exception; a lost peer is a consequence."""
    errors = [
        error for rank in phases if (error := read_told(error_file(folder, rank), RankError)) is not None
    ]
    failures = [
        one for group in phases for one in read_told(failures_file(folder, group), list[Failure]) or []
    ]
    reported = {error.rank for error in errors}
    for failure in sorted(failures, key=lambda one: one.time):
        if failure.rank in reported or failure.exit_code in (0, -signal.SIGTERM):
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
