"""Executes one planned run and makes its record."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.launch.local import Outcome, launch
from adabench.harness.machine.environment import probe
from adabench.harness.planning.cell import Cell
from adabench.harness.planning.study import Study
from adabench.harness.plugins.registry import load_usecase
from adabench.harness.trial.spec import RankState, TrialSpec
from adabench.results.record import Noise, PlannedRun, Run, Seconds, Session, Status, sum_counters
from adabench.results.store import SessionStore

__all__ = ["execute_run"]


def execute_run(
    planned: PlannedRun,
    cell: Cell,
    attempt: int,
    obstacle: str | None,
    study: Study,
    session: Session,
    store: SessionStore,
    server: ForkServer,
    stopped: Callable[[], bool],
    watch: Callable[[RankState], None],
    turns: str | None = None,
    profile: Path | None = None,
) -> Run:
    """Run a cell as its own process group, with noise probes before and after; nothing is raised for a
    failure. With an obstacle nothing is launched, and the run is recorded as skipped. With a folder `profile`
    the steps are budgeted, and flame graphs are drawn there. `turns` is the socket of a run that takes turns
    with others.
    """
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
        pinned=cell.pinned,
        data=cell.data_path,
        seed=planned.seed,
        # Warm-ups are no measurements, so they may be watched.
        trace=planned.phase == "warmup",
        turns=turns,
        turn_steps=study.turn_steps,
        profile=None if profile is None else str(profile.resolve()),
    )
    load, seconds = probe()
    started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    out, err = (store.logs / f"{run_id}.{suffix}" for suffix in ("out", "err"))
    outcome = (
        Outcome("skipped", 0.0, reason=obstacle)
        if obstacle is not None
        else launch(server, spec, out, err, study.timeout, stopped, watch)
    )
    load_after, seconds_after = probe()
    events = [event for result in outcome.results for event in result.trace]
    if events:
        store.write_trace(run_id, events)
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
        pinned=cell.pinned,
        interleaved=cell.interleaved,
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
        noise=Noise(
            load1=load, probe_seconds=seconds, load1_after=load_after, probe_seconds_after=seconds_after
        ),
        link=outcome.link,
        environment=session.environment_id,
        budgets=[result.budget for result in outcome.results if result.budget is not None],
    )


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
