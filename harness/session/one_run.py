"""Executes one planned run and makes its record."""

import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from adabench.harness.launch.launcher import Launcher, Outcome, Supervision
from adabench.harness.launch.watch import launch
from adabench.harness.plugins.registry import load_usecase
from adabench.harness.run.spec import RunSpec, merged_results
from adabench.harness.session.tensorboard import RunEventFiles
from adabench.harness.study.cell import Cell
from adabench.harness.study.study import Study
from adabench.results.record import Noise, PlannedRun, Run, Seconds, Session
from adabench.results.store import SessionStore


@dataclass(frozen=True)
class SessionContext:
    """Objects that all runs of a session share; `event_files` is the folder of TensorBoard, if it is used."""

    study: Study
    session: Session
    store: SessionStore
    launcher: Launcher
    event_files: Path | None = None


@dataclass(frozen=True)
class Attempt:
    """One execution of a planned run.

    Attributes
    ----------
    planned : PlannedRun
        Run to execute.
    cell : Cell
        Cell of the run.
    number : int
        Number of the attempt, from 1.
    obstacle : str or None
        Reason to record the run as skipped instead of launching it.
    turn_socket : str or None
        Socket of a run that takes turns with others.
    profile : Path or None
        Folder for flame graphs; if it is set, the run's steps are timed part by part.
    """

    planned: PlannedRun
    cell: Cell
    number: int = 1
    obstacle: str | None = None
    turn_socket: str | None = None
    profile: Path | None = None


def execute_run(attempt: Attempt, context: SessionContext, supervision: Supervision) -> Run:
    """Run a cell as its own process group, with noise probes before and after.

    A failure of the run raises nothing: it is part of the record.
    """
    planned, cell, launcher = attempt.planned, attempt.cell, context.launcher
    block = "w" if planned.phase == "warmup" else f"b{planned.block}"
    run_id = f"{cell.id[:6]}-{block}-a{attempt.number}-{secrets.token_hex(2)}"
    if context.event_files is not None:
        name = f"{cell.usecase}-{cell.backend}-{run_id}"
        event_files = RunEventFiles(context.event_files / name, planned.nodes)
        supervision = replace(supervision, look=event_files.update)
    before = launcher.probe()
    started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    if attempt.obstacle is not None:
        outcome = Outcome("skipped", 0.0, reason=attempt.obstacle)
    else:
        spec = _spec(attempt, watched=context.event_files is not None)
        outcome = launch(launcher, spec, context.store.logs / run_id, supervision)
    noise = _noise(before, launcher.probe())
    events = [event for result in outcome.results for event in result.trace]
    if events:
        context.store.write_trace(run_id, events)
    usecase = load_usecase(cell.usecase)
    target = context.study.targets.get(cell.usecase) if planned.phase == "measured" else None
    fields: dict[str, Any] = {
        **msgspec.structs.asdict(planned),
        "data": cell.data,
        "policy": cell.policy,
        **outcome.recorded(),
        **merged_results(outcome.results),
        **_judgement(outcome, usecase.maximize, target),
    }
    return Run(
        **fields,
        run_id=run_id,
        session=context.session.session,
        attempt=attempt.number,
        started_at=started_at,
        seconds=_seconds(outcome),
        metric=usecase.metric,
        tolerance=usecase.tolerance,
        noise=noise,
        environment=context.session.environment_id,
        launcher=launcher.name,
        hosts=launcher.hosts(planned.nodes),
    )


def _spec(attempt: Attempt, watched: bool) -> RunSpec:
    planned, cell = attempt.planned, attempt.cell
    params = {**cell.params, "epochs": planned.params["epochs"]}
    return RunSpec(
        **{**msgspec.structs.asdict(cell), "params": params},
        cell=cell.id,
        seed=planned.seed,
        # Warm-ups are not measured, so tracing may slow them down.
        trace=planned.phase == "warmup",
        profile=None if attempt.profile is None else str(attempt.profile.resolve()),
        turn_socket=attempt.turn_socket,
        watched=watched,
    )


def _noise(before: tuple[float, float] | None, after: tuple[float, float] | None) -> Noise | None:
    if before is None:
        return None
    load, seconds = after or (None, None)
    return Noise(load1=before[0], probe_seconds=before[1], load1_after=load, probe_seconds_after=seconds)


def _seconds(outcome: Outcome) -> Seconds:
    if not outcome.results:
        return Seconds(total=round(outcome.total_seconds, 4))
    first = outcome.results[0]
    total = round(outcome.total_seconds - first.paused_seconds, 4)
    spent = first.setup_seconds + first.train_seconds + first.eval_seconds
    return Seconds(
        setup=first.setup_seconds,
        train=first.train_seconds,
        eval=first.eval_seconds,
        teardown=max(total - spent, 0.0),
        total=total,
    )


def _judgement(outcome: Outcome, maximize: bool, target: dict[str, float] | None) -> dict[str, Any]:
    """Fields of the record that depend on whether validation reached the target."""
    if outcome.status != "ok" or target is None:
        return {"target": target}
    sign = 1 if maximize else -1
    first = outcome.results[0]
    for epoch, entry in enumerate(first.history, 1):
        if all(sign * entry[f"valid_{metric}"] >= sign * value for metric, value in target.items()):
            seconds = sum(first.epoch_seconds[:epoch])
            return {"target": target, "target_met": True, "seconds_to_target": seconds}
    return {"target": target, "target_met": False, "status": "not_converged"}
