"""Executes a session: every planned run that is not recorded yet, each recorded when it ends."""

from __future__ import annotations

import secrets
import signal
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from adabench.analysis.load import cell_labels
from adabench.harness.environment import (
    capture,
    environment_id,
    git_state,
    machine_name,
    probe,
    short_differences,
)
from adabench.harness.launch import Outcome, launch
from adabench.harness.plan import Cell, cells_of, order, study_id
from adabench.harness.progress import SessionProgress
from adabench.harness.registry import load_usecase
from adabench.harness.spec import TrialSpec
from adabench.harness.study import Study
from adabench.results.record import Noise, PlannedRun, Run, Seconds, Session, Status, sum_counters
from adabench.results.store import SessionStore, list_sessions

__all__ = ["Interruption", "Policy", "remaining", "run_session"]


@dataclass(frozen=True)
class Policy:
    """How a session is continued.

    Attributes
    ----------
    fresh : bool
        Start another session even if one can be continued.
    retry_infra : int
        How often a run is tried again whose processes could not be launched or were killed from outside.
    """

    fresh: bool = False
    retry_infra: int = 0


def run_session(study: Study, root: Path, policy: Policy, console: Console) -> tuple[SessionStore, bool]:
    """Execute a study, continuing an unfinished session of the same study, sources, data and environment.

    Returns
    -------
    SessionStore, bool
        The session's folder and whether it was interrupted.

    Raises
    ------
    UsageError, RecordError
        Before anything is launched: for a mistake in the study, its data or the results folder.
    """
    cells = cells_of(study)
    _check_targets(study)
    store, session = _open(study, cells, root, policy, console)
    by_id = {cell.id: cell for cell in cells}
    with store.locked(), Interruption() as interruption:
        recorded = store.runs()
        todo = remaining(session.plan, recorded, policy)
        if not todo:
            console.print(f"session {store.folder.name} is complete; --fresh runs it again")
        with SessionProgress(session.plan, recorded, cell_labels(session.plan), console) as progress:
            for planned, attempt in todo:
                while True:
                    progress.start(planned)
                    run = _execute(
                        planned, by_id[planned.cell], attempt, study, session, store, interruption, progress
                    )
                    store.append(run)
                    progress.end(run)
                    attempt += 1
                    if not (_is_infra(run) and attempt <= 1 + policy.retry_infra):
                        break
                if interruption.requested:
                    break
    return store, interruption.requested


def remaining(
    plan: list[PlannedRun], recorded: list[Run], policy: Policy | None = None
) -> list[tuple[PlannedRun, int]]:
    """What is planned and not recorded, each with the number of its next attempt.

    An interrupted run counts as not recorded; so does, as often as the policy says, one that failed for a
    reason outside itself.
    """
    last: dict[tuple[str, str, int], Run] = {}
    for run in recorded:
        last[(run.cell, run.phase, run.block)] = run
    todo = []
    for planned in plan:
        run_before = last.get(planned.key)
        if run_before is None:
            todo.append((planned, 1))
        elif run_before.status == "interrupted" or (
            policy is not None and _is_infra(run_before) and run_before.attempt <= policy.retry_infra
        ):
            todo.append((planned, run_before.attempt + 1))
    return todo


class Interruption:
    """Remembers Ctrl-C or SIGTERM instead of raising in the middle of a write; a context manager."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self.requested

    def _request(self, number: int, frame: Any) -> None:
        self.requested = True


def _open(
    study: Study, cells: list[Cell], root: Path, policy: Policy, console: Console
) -> tuple[SessionStore, Session]:
    identifier = study_id(study, cells)
    environment = capture()
    # A single block is compared with nothing, so nothing has to be warm for it.
    plan = order(cells, study.repeats, study.seed, study.warmup and study.repeats > 1)
    same = (
        []
        if policy.fresh
        else [
            (store, session)
            for store in list_sessions(root)
            if (session := store.session()).study_id == identifier
        ]
    )
    for store, session in reversed(same):
        if session.environment_id != environment_id(environment):
            changed = short_differences(session.environment, environment)
            console.print(
                f"session {session.session} is of another environment ({changed}): starting a new one"
            )
            continue
        if len(plan) > len(session.plan):
            session = msgspec.structs.replace(session, plan=plan, study=msgspec.to_builtins(study))
            store.create(session)
        return store, session
    now = datetime.now(timezone.utc)
    session = Session(
        session=f"{study.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        created_at=now.isoformat(timespec="seconds"),
        command=["adabench", *sys.argv[1:]],
        study=msgspec.to_builtins(study),
        study_id=identifier,
        seed=study.seed,
        plan=plan,
        environment=environment,
        environment_id=environment_id(environment),
        git=git_state(),
        machine=machine_name(environment),
    )
    store = SessionStore(root / session.session)
    store.create(session)
    return store, session


def _execute(
    planned: PlannedRun,
    cell: Cell,
    attempt: int,
    study: Study,
    session: Session,
    store: SessionStore,
    interruption: Interruption,
    progress: SessionProgress,
) -> Run:
    block = "w" if planned.phase == "warmup" else f"b{planned.block}"
    run_id = f"{cell.id[:6]}-{block}-a{attempt}-{secrets.token_hex(2)}"
    params = {**cell.params, "epochs": planned.params["epochs"]}
    spec = TrialSpec(
        usecase=cell.usecase,
        params=params,
        backend=cell.backend,
        options=cell.options,
        nodes=cell.nodes,
        workers=cell.workers,
        network=cell.network,
        data=cell.data_path,
        seed=planned.seed,
        folder="",
        launched_at=0.0,
    )
    load, seconds = probe()
    started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    out, err = (store.logs / f"{run_id}.{suffix}" for suffix in ("out", "err"))
    outcome = launch(spec, out, err, study.timeout, interruption, progress.watch)
    load_after, seconds_after = probe()
    first = outcome.results[0] if outcome.results else None
    target = study.targets.get(cell.usecase) if planned.phase == "measured" else None
    status, to_target = _judge(outcome, cell.usecase, target)
    return Run(
        run_id=run_id,
        session=session.session,
        cell=cell.id,
        usecase=cell.usecase,
        backend=cell.backend,
        params=planned.params,
        nodes=cell.nodes,
        workers=cell.workers,
        network=cell.network,
        data=first.data if first is not None else cell.data,
        block=planned.block,
        position=planned.position,
        seed=planned.seed,
        phase=planned.phase,
        attempt=attempt,
        status=status,
        failed_phase=outcome.phase,
        failed_rank=outcome.rank,
        reason=outcome.reason,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        started_at=started_at,
        seconds=_seconds(outcome),
        epoch_seconds=first.epoch_seconds if first is not None else [],
        samples=sum(result.samples for result in outcome.results),
        metrics=first.metrics if first is not None else {},
        history=first.history if first is not None else [],
        best_epoch=first.best_epoch if first is not None else None,
        target=target,
        target_met=None if target is None or first is None else to_target is not None,
        seconds_to_target=to_target,
        counters=sum_counters([result.counters for result in outcome.results]) if first is not None else {},
        cpu_seconds=sum(result.cpu_seconds for result in outcome.results) if first is not None else None,
        peak_rss_mib=sum(result.peak_rss_mib for result in outcome.results) if first is not None else None,
        context_switches=sum(r.context_switches for r in outcome.results) if first is not None else None,
        noise=Noise(
            load1=load, probe_seconds=seconds, load1_after=load_after, probe_seconds_after=seconds_after
        ),
        environment=session.environment_id,
    )


def _seconds(outcome: Outcome) -> Seconds:
    total = round(outcome.total_seconds, 4)
    if not outcome.results:
        return Seconds(total=total)
    first = outcome.results[0]
    spent = first.setup_seconds + first.train_seconds + first.eval_seconds
    return Seconds(
        setup=first.setup_seconds,
        train=first.train_seconds,
        eval=first.eval_seconds,
        teardown=max(total - spent, 0.0),
        total=total,
    )


def _judge(outcome: Outcome, usecase: str, target: dict[str, float] | None) -> tuple[Status, float | None]:
    """The status in view of the target, and the training seconds until validation reached it."""
    if outcome.status != "ok" or target is None:
        return outcome.status, None
    sign = 1 if load_usecase(usecase).maximize else -1
    first = outcome.results[0]
    for epoch, entry in enumerate(first.history):
        if all(sign * entry[f"valid_{metric}"] >= sign * value for metric, value in target.items()):
            return "ok", sum(first.epoch_seconds[: epoch + 1])
    return "not_converged", None


def _is_infra(run: Run) -> bool:
    return run.status == "failed" and (run.failed_phase == "launch" or run.signal == "SIGKILL")


def _check_targets(study: Study) -> None:
    from adabench.harness.errors import UsageError

    for usecase, target in study.targets.items():
        metric = load_usecase(usecase).metric
        for name in target:
            if name != metric:
                raise UsageError(
                    f"target {name!r} of use case {usecase!r} is not the metric it is judged by: {metric}"
                )
