"""Launches one run, watches it, and determines its outcome."""

import os
import signal
import time
from dataclasses import replace
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
from adabench.harness.run.spec import (
    RankError,
    RankResult,
    RankState,
    RunSpec,
    exchange_file,
    read_json,
)
from adabench.results.record import Status
from adabench.results.store import writing

GRACE_SECONDS = 5.0
"""Seconds from the first failure to the end of all: a rank in a dead collective ignores SIGTERM for 30 s."""
_POLL_SECONDS = 0.1
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")
_Stopped = tuple[Status, str]
"""Status and reason of a run that was ended before its own end."""


def launch(launcher: Launcher, spec: RunSpec, log: Path | None, supervision: Supervision) -> Outcome:
    """Run one cell once.

    Parameters
    ----------
    launcher : Launcher
        Prepared launcher.
    spec : RunSpec
        Specification of the run.
    log : Path or None
        Path of output files without ``.out`` and ``.err``. The output of all ranks is appended to these
        files; without a path it is discarded.
    supervision : Supervision
        Conditions that end the run early, and observers.
    """
    with run_files(purpose(spec), log) as files:
        try:
            group = launcher.begin(spec, files)
        except Unlaunchable as error:
            phase = "launch" if error.status == "failed" else None
            return Outcome(error.status, 0.0, failed_phase=phase, reason=str(error))
        try:
            stopped = _watch(group, spec, files.folder, supervision)
        finally:
            # Also after an exception: the group never outlives this call.
            exit_code = group.end()
            supervision.look(files.folder, True)
        total = time.monotonic() - group.launched_at
        outcome = _outcome(stopped, group, spec, files.folder, exit_code)
        if outcome.reason is not None:
            with writing(Path(files.err.name)):
                files.err.write(f"[adabench] {outcome.status}: {outcome.reason}\n".encode())
    return replace(outcome, total_seconds=total, link=group.link)


def purpose(spec: RunSpec) -> str:
    """Description of a run's scratch folder for users who find it."""
    return f"a run of {spec.usecase} with {spec.backend}, launched by process {os.getpid()}"


def _watch(group: Group, spec: RunSpec, folder: Path, supervision: Supervision) -> _Stopped | None:
    """Wait until the run has ended or has to be ended; gives the reason unless its own files have it."""
    ranks = range(spec.nodes)
    failed_since: float | None = None
    while True:
        if group.wait(_POLL_SECONDS) is not None:
            return None
        supervision.look(folder, False)
        if group.trouble is not None:
            return None
        now = time.monotonic()
        if supervision.stopped():
            return "interrupted", "stopped by the user"
        if now > group.launched_at + supervision.timeout:
            return "timeout", f"killed after {supervision.timeout:g} s"
        state = read_json(exchange_file(folder, "state", 0), RankState)
        if state is not None:
            supervision.watch(state)
        reports = (exchange_file(folder, kind, n) for n in ranks for kind in ("error", "failures"))
        failed = any(report.exists() for report in reports)
        failed_since = (failed_since or now) if failed else None
        if failed_since is not None and now - failed_since > GRACE_SECONDS:
            return None


def _outcome(stopped: _Stopped | None, group: Group, spec: RunSpec, folder: Path, exit_code: int) -> Outcome:
    """The outcome of a run that has ended, without its duration."""
    ranks = range(spec.nodes)
    states = {rank: read_json(exchange_file(folder, "state", rank), RankState) for rank in ranks}
    phases = {rank: state.phase if state is not None else "launch" for rank, state in states.items()}
    trouble = group.trouble
    if stopped is not None and (trouble is None or stopped[0] == "interrupted"):
        return Outcome(stopped[0], 0, failed_phase=phases[0], reason=stopped[1], exit_code=exit_code)
    if trouble is not None:
        phase = "launch" if trouble.rank is None else phases[trouble.rank]
        return Outcome("failed", 0, phase, trouble.rank, trouble.reason, exit_code)
    results = [read_json(exchange_file(folder, "result", rank), RankResult) for rank in ranks]
    complete = [result for result in results if result is not None]
    if exit_code == 0 and len(complete) == spec.nodes:
        named = (read_json(exchange_file(folder, "left", number), list[str]) for number in ranks)
        left = tuple(name for names in named for name in names or [])
        planned = complete[0].data if spec.data is None else spec.data
        for one in complete:
            if one.data != planned:
                reason = f"the data changed: rank {one.rank} read {one.data}, but the run is of {planned}"
                return Outcome("failed", 0, "setup", one.rank, reason, exit_code, left=left)
        return Outcome("ok", 0, exit_code=0, results=complete, left=left)
    return _first_cause(folder, phases, exit_code)


def _first_cause(folder: Path, phases: dict[int, str], exit_code: int) -> Outcome:
    """The outcome of a failed run.

    A rank that a signal ended comes first, then the earliest exception; a lost peer is a consequence. Ranks
    that ended without a word come last.
    """
    said = (read_json(exchange_file(folder, "error", rank), RankError) for rank in phases)
    errors = [error for error in said if error is not None]
    reported = {error.rank for error in errors}
    failures = [
        failure
        for number in phases
        for failure in read_json(exchange_file(folder, "failures", number), list[Failure]) or []
        if failure.rank not in reported
    ]
    failures.sort(key=lambda failure: failure.time)
    for failure in failures:
        rank, code = failure.rank, failure.exit_code
        if code in (0, -signal.SIGTERM):
            continue
        name = _signal_name(-code) if code < 0 else None
        how = f"ended with exit code {code}" if name is None else f"was killed by {name}"
        if name == "SIGKILL" and failure.out_of_memory:
            how += ": the kernel had run out of memory for it"
            return Outcome("oom", 0, phases[rank], rank, f"rank {rank} {how}", code, name)
        return Outcome("failed", 0, phases[rank], rank, f"rank {rank} {how}", code, name)
    if errors:
        first = min(errors, key=lambda error: (not error.unavailable, error.kind == "PeerLost", error.at))
        if first.unavailable:
            return Outcome("skipped", 0, first.phase, first.rank, first.message, 1)
        memory = first.kind in _OUT_OF_MEMORY or "allocate memory" in first.message
        reason = f"rank {first.rank}: {first.kind}: {first.message}"
        return Outcome("oom" if memory else "failed", 0, first.phase, first.rank, reason, 1)
    if failures:
        rank = failures[0].rank
        return Outcome("failed", 0, phases[rank], rank, f"rank {rank} vanished", exit_code)
    reason = f"the process group ended with exit code {exit_code} before any rank reported: see the log"
    return Outcome("failed", 0, "launch", None, reason, exit_code)


def _signal_name(number: int) -> str:
    """Name of a signal; most real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
