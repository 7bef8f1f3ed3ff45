"""Executes one planned run and makes its record."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from adabench.harness.launch.launcher import Launcher, Outcome, Supervision
from adabench.harness.launch.watch import launch
from adabench.harness.plugins.registry import load_usecase
from adabench.harness.run.spec import RunSpec
from adabench.harness.session.tensorboard import SessionEventFiles
from adabench.harness.study.cell import Cell
from adabench.harness.study.study import Study
from adabench.results.record import (
    WAITING,
    Noise,
    PlannedRun,
    Run,
    Seconds,
    Session,
    Status,
    sum_counters,
)
from adabench.results.store import SessionStore

__all__ = ["Attempt", "SessionContext", "execute_run"]


@dataclass(frozen=True)
class SessionContext:
    """What the runs of a session have in common; `board` is None if nobody is to watch them."""

    study: Study
    session: Session
    store: SessionStore
    launcher: Launcher
    board: SessionEventFiles | None = None


@dataclass(frozen=True)
class Attempt:
    """One execution of a planned run.

    Attributes
    ----------
    planned : PlannedRun
    cell : Cell
        The cell that it is a run of.
    number : int
        From 1.
    obstacle : str or None
        Why it is not worth a launch, for a run that is only recorded, as skipped.
    turns : str or None
        The socket of a run that takes turns with others.
    profile : Path or None
        A folder for flame graphs, of a run whose steps are budgeted.
    """

    planned: PlannedRun
    cell: Cell
    number: int = 1
    obstacle: str | None = None
    turns: str | None = None
    profile: Path | None = None


def execute_run(attempt: Attempt, context: SessionContext, supervision: Supervision) -> Run:
    """Run a cell as its own process group, with noise probes before and after; nothing is raised for a
    failure.
    """
    planned, cell = attempt.planned, attempt.cell
    block = "w" if planned.phase == "warmup" else f"b{planned.block}"
    run_id = f"{cell.id[:6]}-{block}-a{attempt.number}-{secrets.token_hex(2)}"
    spec = RunSpec(
        **cell.settings(),
        usecase=cell.usecase,
        params={**cell.params, "epochs": planned.params["epochs"]},
        backend=cell.backend,
        options=cell.options,
        policy=cell.policy,
        data=cell.data_path,
        seed=planned.seed,
        # Warm-ups are no measurements, so they may be watched.
        trace=planned.phase == "warmup",
        turns=attempt.turns,
        cell=cell.id,
        profile=None if attempt.profile is None else str(attempt.profile.resolve()),
        watched=context.board is not None,
    )
    if context.board is not None:
        board = context.board.run(f"{cell.usecase}-{cell.backend}-{run_id}", planned.nodes)
        supervision = replace(supervision, look=board.look)
    before = context.launcher.probe()
    started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    if attempt.obstacle is not None:
        outcome = Outcome("skipped", 0.0, reason=attempt.obstacle)
    else:
        outcome = launch(context.launcher, spec, context.store.logs / run_id, supervision)
    after = context.launcher.probe()
    events = [event for result in outcome.results for event in result.trace]
    if events:
        context.store.write_trace(run_id, events)
    first = outcome.results[0] if outcome.results else None
    target = context.study.targets.get(cell.usecase) if planned.phase == "measured" else None
    status, to_target = _judge(outcome, cell.usecase, target)
    return Run(
        **msgspec.structs.asdict(planned),
        run_id=run_id,
        session=context.session.session,
        data=first.data if first is not None else cell.data,
        attempt=attempt.number,
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
        metric=load_usecase(cell.usecase).metric,
        tolerance=load_usecase(cell.usecase).tolerance,
        history=first.history if first is not None else [],
        best_epoch=first.best_epoch if first is not None else None,
        target=target,
        target_met=None if target is None or first is None else to_target is not None,
        seconds_to_target=to_target,
        counters=sum_counters([result.counters for result in outcome.results]) if first is not None else {},
        cpu_seconds=sum(result.cpu_seconds for result in outcome.results) if first is not None else None,
        train_cpu_seconds=sum(r.train_cpu_seconds for r in outcome.results) if first is not None else None,
        peak_rss_mib=sum(result.peak_rss_mib for result in outcome.results) if first is not None else None,
        context_switches=sum(r.context_switches for r in outcome.results) if first is not None else None,
        noise=_noise(before, after),
        link=outcome.link,
        environment=context.session.environment_id,
        policy=cell.policy,
        tables=_merged_tables(outcome),
        choices=[choice for result in outcome.results for choice in result.choices],
        launcher=context.launcher.name,
        hosts=context.launcher.hosts(planned.nodes),
        budgets=[result.budget for result in outcome.results if result.budget is not None],
        waiting=_waiting(outcome),
    )


def _noise(before: tuple[float, float] | None, after: tuple[float, float] | None) -> Noise | None:
    if before is None:
        return None
    load_after, seconds_after = (None, None) if after is None else after
    return Noise(
        load1=before[0],
        probe_seconds=before[1],
        load1_after=load_after,
        probe_seconds_after=seconds_after,
    )


def _merged_tables(outcome: Outcome) -> dict[str, dict[str, float]]:
    names = dict.fromkeys(table for result in outcome.results for table in result.tables)
    return {name: sum_counters([result.tables.get(name, {}) for result in outcome.results]) for name in names}


def _waiting(outcome: Outcome) -> dict[str, list[float]]:
    nodes = [result.counters for result in outcome.results]
    told = [name for name in WAITING if len(nodes) > 1 and all(name in one for one in nodes)]
    return {name: [one[name] for one in nodes] for name in told}


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
