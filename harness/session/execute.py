"""Executes a session: every planned run that is not recorded yet, each recorded when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from adabench.analysis.compare import blocks_needed, compare
from adabench.analysis.load import cell_labels, last_attempts
from adabench.analysis.statistics import interim_analyses
from adabench.harness.errors import UsageError
from adabench.harness.estimate.predict import recorded_seconds
from adabench.harness.launch.launcher import Launcher, Supervision
from adabench.harness.machine.interruption import Interruption
from adabench.harness.machine.noise import noise_complaints
from adabench.harness.machine.scratch import sweep
from adabench.harness.plugins.registry import load_launcher, load_usecase, modules, unavailable
from adabench.harness.run.interleaving import Participant, in_turns
from adabench.harness.session.one_run import Attempt, SessionContext, execute_run
from adabench.harness.session.open_session import open_session
from adabench.harness.session.plan_text import too_short
from adabench.harness.session.progress import SessionProgress
from adabench.harness.session.tensorboard import SessionEventFiles, check_tensorboard
from adabench.harness.study.cell import Cell
from adabench.harness.study.plan import cells_of, planned_runs, with_repeats
from adabench.harness.study.study import Study
from adabench.results.record import PlannedRun, Run, Session
from adabench.results.store import SessionStore

__all__ = ["BAD", "ResumeOptions", "obstacle", "remaining", "run_session", "settled"]

BAD = ("failed", "timeout", "oom")
"""Statuses of runs that were tried and came to no good end."""

_FEWEST_ALIKE = 3
"""Runs that tell how long others take."""

INTERLEAVE = "with --interleaved the runs of a block take turns, so that noise meets all of them alike"


@dataclass(frozen=True)
class ResumeOptions:
    """How a session is continued.

    Attributes
    ----------
    fresh : bool
        Start another session even if one can be continued.
    retry_infra : int
        How often a run is tried again whose processes could not be launched or were killed from outside.
    until_rel_ci : float or None
        Add blocks until the intervals are `settled`, as judged after each number of blocks of
        `statistics.interim_analyses`; None keeps the study's repeats.
    max_repeat : int
        The most blocks that `until_rel_ci` leads to.
    judged : bool
        Whether runs are for verdicts, of which it is said if there are too few.
    board : bool
        Whether TensorBoard's event files are written while they train.
    """

    fresh: bool = False
    retry_infra: int = 0
    until_rel_ci: float | None = None
    max_repeat: int = 30
    judged: bool = True
    board: bool = False


def run_session(
    study: Study, root: Path, options: ResumeOptions, console: Console, launcher: Launcher | None = None
) -> tuple[SessionStore, bool]:
    """Execute a study, continuing an unfinished session of the same study, sources, data and environment.

    Parameters
    ----------
    study : Study
    root : Path
        The folder that sessions are kept in.
    options : ResumeOptions
    console : Console
        Where it is told how far the session has come.
    launcher : Launcher, optional
        The study's, opened; without one it is made here.

    Returns
    -------
    SessionStore, bool
        The session's folder and whether it was interrupted.

    Raises
    ------
    UsageError, RecordError
        Before anything is launched: for a mistake in the study, its data or the results folder.
    """
    if launcher is None:
        with load_launcher(study.launcher)() as launcher:
            return run_session(study, root, options, console, launcher)
    launcher.check(study)
    if options.board:
        check_tensorboard()
    cells = cells_of(study)
    launcher.agree(cells)
    study = with_repeats(study, cells)
    _check_targets(study)
    schedule = [study.repeats]
    if options.until_rel_ci is not None:
        schedule = interim_analyses(study.repeats, options.max_repeat)
        _check_comparable(planned_runs(cells, study))
    sweep()
    by_id = {cell.id: cell for cell in cells}
    opened = open_session(study, cells, root, options.fresh, console.print, launcher.environment())
    needed = [
        *modules("usecase", {cell.usecase for cell in cells}),
        *modules("backend", {cell.backend for cell in cells}),
    ]
    with opened as (store, session), Interruption() as interruption:
        recorded, noisy = store.runs(), False
        if session.analyses < len(schedule):
            session = msgspec.structs.replace(session, analyses=len(schedule))
            store.create(session)
        short = too_short(session.plan, max(_blocks(session.plan), schedule[-1]), session.analyses)
        if short is not None and options.judged:
            _say(console, short)
        if not remaining(session.plan, recorded, options) and _satisfied(options, session, recorded):
            console.print(f"session {store.folder.name} is complete; --fresh runs it again")
        elif launcher.runs_here and not any(planned.interleaved for planned in session.plan):
            for complaint in noise_complaints(session.environment):
                _say(console, f"warning: {complaint}")
                noisy = True
            if noisy and study.launcher == "local":
                _say(console, INTERLEAVE)
        board = SessionEventFiles(store.folder / "tensorboard") if options.board else None
        earlier = recorded_seconds(session.plan, root)
        sure = {key: one for key, one in earlier.items() if one.runs >= _FEWEST_ALIKE}
        with SessionProgress(session.plan, recorded, cell_labels(session.plan), console, sure) as progress:
            while not (interruption.requested or launcher.interrupted):
                todo = remaining(session.plan, store.runs(), options)
                if _warm_ups_failed(todo, store.runs()):
                    console.print("all warm-ups failed: no measured run is started", highlight=False)
                    break
                if not todo and _satisfied(options, session, store.runs()):
                    break
                if not todo:
                    longer = next(blocks for blocks in schedule if blocks > _blocks(session.plan))
                    plan = planned_runs(cells, study, longer)
                    session = msgspec.structs.replace(session, plan=plan)
                    store.create(session)
                    progress.lengthen(plan)
                    continue
                context = SessionContext(study, session, store, launcher, board)
                launcher.prepare(needed)
                _execute(_next(todo), by_id, context, interruption, progress)
                if launcher.gone is not None:
                    _say(console, f"{launcher.gone}; the same command continues when all hosts are there")
                    break
    return store, interruption.requested or launcher.interrupted


def remaining(
    plan: Sequence[PlannedRun], recorded: Sequence[Run], options: ResumeOptions | None = None
) -> list[tuple[PlannedRun, int]]:
    """What is planned and not recorded, each with the number of its next attempt.

    An interrupted run counts as not recorded; so does, as often as the options say, one that failed for a
    reason outside itself. Runs that take turns are repeated together.
    """
    last = {(run.cell, run.phase, run.block): run for run in recorded}
    missing = set()
    for planned in plan:
        before = last.get(planned.key)
        if (
            before is None
            or before.status == "interrupted"
            or (options is not None and _is_infra(before) and before.attempt <= options.retry_infra)
        ):
            missing.add(_turn_takers(planned))
    return [
        (planned, last[planned.key].attempt + 1 if planned.key in last else 1)
        for planned in plan
        if _turn_takers(planned) in missing
    ]


def obstacle(planned: PlannedRun, recorded: Sequence[Run], launcher: Launcher) -> str | None:
    """Why a run need not be tried: it cannot be launched, its backend cannot work here, or said so in an
    earlier block.
    """
    said = [run.reason for run in recorded if run.cell == planned.cell and run.status == "skipped"]
    reason = launcher.obstacle(planned)
    if reason is not None:
        return reason
    return said[-1] if said else unavailable(planned.backend)


def settled(runs: Sequence[Run], relative: float, analyses: int) -> bool:
    """Whether every interval of a ratio to the baseline's time is within ± `relative` of the ratio.

    Comparisons that more blocks would not lead to a verdict on time do not count.
    """
    open_ended = ("too few runs", "undecided", "faster", "slower", "equivalent")
    return all(
        (one.ratio_high - one.ratio_low) / 2 <= relative * one.ratio
        for one in compare(runs, analyses=analyses)
        if one.verdict in open_ended
    )


def _turn_takers(planned: PlannedRun) -> tuple[object, ...]:
    """Equal for the runs that take turns: those of a block that are compared with one another."""
    if not planned.interleaved:
        return planned.key
    return (planned.usecase, planned.phase, planned.block, *planned.settings().values())


def _next(todo: Sequence[tuple[PlannedRun, int]]) -> list[tuple[PlannedRun, int]]:
    """The first run, and those that take turns with it."""
    first = _turn_takers(todo[0][0])
    return [(planned, attempt) for planned, attempt in todo if _turn_takers(planned) == first]


def _execute(
    runs: Sequence[tuple[PlannedRun, int]],
    cells: Mapping[str, Cell],
    context: SessionContext,
    interruption: Interruption,
    progress: SessionProgress,
) -> None:
    """Execute and record one run, or several that take turns."""
    store = context.store

    def ended(run: Run) -> None:
        store.append(run)
        progress.end(run)

    def execute(planned: PlannedRun, attempt: int, turns: str | None, given_up: Callable[[], bool]) -> Run:
        return execute_run(
            Attempt(
                planned,
                cells[planned.cell],
                attempt,
                obstacle(planned, store.runs(), context.launcher),
                turns,
            ),
            context,
            Supervision(
                # A run waits for the others at most as long as they may take.
                len(runs) * context.study.timeout,
                lambda: interruption() or context.launcher.interrupted or given_up(),
                lambda state: progress.watch(planned, state),
            ),
        )

    if len(runs) == 1:
        ((planned, attempt),) = runs
        progress.start(planned)
        ended(execute(planned, attempt, None, lambda: False))
        return
    in_turns(
        [
            Participant(
                partial(execute, planned, attempt),
                planned.nodes * planned.workers,
                partial(progress.start, planned),
                ended,
            )
            for planned, attempt in runs
        ]
    )


def _say(console: Console, sentence: str) -> None:
    """Print it, in a terminal broken between words."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _warm_ups_failed(todo: Sequence[tuple[PlannedRun, int]], recorded: Sequence[Run]) -> bool:
    """Whether every warm-up has been tried and none has ended well."""
    warm_ups = [run for run in last_attempts(recorded) if run.phase == "warmup"]
    left = any(planned.phase == "warmup" for planned, _ in todo)
    return bool(warm_ups) and not left and all(run.status in BAD for run in warm_ups)


def _satisfied(options: ResumeOptions, session: Session, runs: Sequence[Run]) -> bool:
    if options.until_rel_ci is None or _blocks(session.plan) >= options.max_repeat:
        return True
    return settled(runs, options.until_rel_ci, session.analyses)


def _blocks(plan: Sequence[PlannedRun]) -> int:
    return 1 + max(run.block for run in plan)


def _is_infra(run: Run) -> bool:
    return run.status == "failed" and (run.failed_phase == "launch" or run.signal == "SIGKILL")


def _check_comparable(plan: Sequence[PlannedRun]) -> None:
    if blocks_needed(plan)[1] == 0:
        raise UsageError(
            "--until-rel-ci watches ratios to a baseline, and a single cell has none: name another backend"
        )


def _check_targets(study: Study) -> None:
    for usecase, target in study.targets.items():
        metric = load_usecase(usecase).metric
        for name in target:
            if name != metric:
                raise UsageError(
                    f"target {name!r} of use case {usecase!r} is not the metric it is judged by: {metric}"
                )
