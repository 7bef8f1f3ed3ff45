"""Executes a session: every planned run that is not recorded yet, each recorded when it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from adabench.analysis.compare import compare, compared_cells
from adabench.analysis.load import cell_labels, last_attempts
from adabench.analysis.statistics import interim_analyses
from adabench.analysis.tracking import working
from adabench.harness.errors import UsageError
from adabench.harness.estimate.recorded import recorded_seconds
from adabench.harness.launch.launcher import Launcher, Supervision
from adabench.harness.machine.interruption import Interruption
from adabench.harness.machine.noise import noise_complaints
from adabench.harness.machine.scratch import sweep
from adabench.harness.plugins.registry import load_launcher, load_usecase, modules, unavailable
from adabench.harness.run.interleaving import in_turns
from adabench.harness.session.one_run import Attempt, SessionContext, execute_run
from adabench.harness.session.open_session import open_session
from adabench.harness.session.plan_text import too_short
from adabench.harness.session.progress import SessionProgress
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.session.tensorboard import check_tensorboard
from adabench.harness.study.cell import Cell
from adabench.harness.study.plan import cells_of, planned_runs, with_repeats
from adabench.harness.study.study import Study
from adabench.results.record import PlannedRun, RecordError, Run
from adabench.results.store import SessionStore

BAD = ("failed", "timeout", "oom")
"""Statuses of runs that were tried and did not succeed."""

_FEWEST_ALIKE = 3
"""Minimum recorded runs from which the time of other runs is estimated."""

INTERLEAVE = "with --interleaved the runs of a block take turns, so that noise affects all of them equally"


def run_session(
    study: Study, root: Path, options: ResumeOptions, console: Console, launcher: Launcher | None = None
) -> tuple[SessionStore, bool]:
    """Execute a study, continuing an unfinished session of the same study, sources, data and environment.

    Parameters
    ----------
    study : Study
        Study to execute.
    root : Path
        Folder of the sessions.
    options : ResumeOptions
        Options for continuing the session.
    console : Console
        Console that shows the progress of the session.
    launcher : Launcher, optional
        Open launcher of the study. By default it is created here.

    Returns
    -------
    SessionStore, bool
        Folder of the session, and whether the session was interrupted.

    Raises
    ------
    UsageError, RecordError
        If the study, its data or the results folder is wrong; raised before anything is launched.
    """
    if launcher is None:
        with load_launcher(study.launcher)() as launcher:
            return run_session(study, root, options, console, launcher)
    launcher.check(study)
    if options.tensorboard:
        check_tensorboard()
    with working("loading use cases and their data"):
        cells = cells_of(study)
    launcher.agree(cells)
    study = with_repeats(study, cells)
    _check_targets(study)
    if options.until_rel_ci is not None:
        _check_comparable(planned_runs(cells, study))
    sweep()
    opened = open_session(study, cells, root, options.fresh, console.print, launcher.environment())
    with opened as (store, session), Interruption() as interruption:
        event_files = store.folder / "tensorboard" if options.tensorboard else None
        context = SessionContext(study, session, store, launcher, event_files)
        SessionExecution(context, cells, options, console, interruption).run()
    return store, interruption.requested or launcher.interrupted


class SessionExecution:
    """Executes the plan of a session, and lengthens it until its intervals are narrow enough."""

    def __init__(
        self,
        context: SessionContext,
        cells: list[Cell],
        options: ResumeOptions,
        console: Console,
        interruption: Interruption,
    ) -> None:
        self.context, self.options = context, options
        self._cells, self._console, self._interruption = cells, console, interruption
        self._schedule = [context.study.repeats]
        if options.until_rel_ci is not None:
            self._schedule = interim_analyses(context.study.repeats, options.max_repeat)
        if context.session.analyses < len(self._schedule):
            self._change_session(analyses=len(self._schedule))
        plan = context.session.plan
        earlier = recorded_seconds(plan, context.store.folder.parent)
        sure = {key: one for key, one in earlier.items() if one.runs >= _FEWEST_ALIKE}
        self.progress = SessionProgress(plan, context.store.runs(), cell_labels(plan), console, sure)

    @property
    def interrupted(self) -> bool:
        """Whether a user has stopped the session, here or on another host."""
        return self._interruption.requested or self.context.launcher.interrupted

    def run(self) -> None:
        """Execute the missing runs, block by block, until the session is complete or interrupted."""
        launcher, store = self.context.launcher, self.context.store
        self._warn()
        needed = [
            *modules("usecase", {cell.usecase for cell in self._cells}),
            *modules("backend", {cell.backend for cell in self._cells}),
        ]
        with self.progress:
            while not self.interrupted:
                todo = remaining(self.context.session.plan, store.runs(), self.options)
                if _warm_ups_failed(todo, store.runs()):
                    self._say("all warm-ups failed: no measured run is started")
                    break
                if not todo and self._satisfied():
                    break
                if not todo:
                    self._lengthen()
                    continue
                launcher.prepare(needed)
                self._execute(_together(todo))
                if launcher.gone is not None:
                    self._say(f"{launcher.gone}; the same command continues when all hosts are there")
                    break

    def cell_of(self, planned: PlannedRun) -> Cell:
        return next(cell for cell in self._cells if cell.id == planned.cell)

    def _warn(self) -> None:
        """Print that there is nothing to do, or why the measurements may not lead to a verdict."""
        session, launcher = self.context.session, self.context.launcher
        blocks = max(_blocks(session.plan), self._schedule[-1])
        short = too_short(session.plan, blocks, session.analyses)
        if short is not None and self.options.judged:
            self._say(short)
        if not remaining(session.plan, self.context.store.runs(), self.options) and self._satisfied():
            self._say(f"session {self.context.store.folder.name} is complete; --fresh runs it again")
        elif launcher.runs_here and not any(planned.interleaved for planned in session.plan):
            complaints = noise_complaints(session.environment)
            for complaint in complaints:
                self._say(f"warning: {complaint}")
            if complaints and self.context.study.launcher == "local":
                self._say(INTERLEAVE)

    def _lengthen(self) -> None:
        """Plan the blocks up to the next interim analysis."""
        longer = next(blocks for blocks in self._schedule if blocks > _blocks(self.context.session.plan))
        self._change_session(plan=planned_runs(self._cells, self.context.study, longer))
        self.progress.lengthen(self.context.session.plan)

    def _change_session(self, **changes: Any) -> None:
        session = msgspec.structs.replace(self.context.session, **changes)
        self.context = replace(self.context, session=session)
        self.context.store.create(session)

    def _execute(self, todo: Sequence[tuple[PlannedRun, int]]) -> None:
        """Execute and record one run, or several that take turns."""
        runs = [PendingRun(self, planned, attempt, len(todo)) for planned, attempt in todo]
        if len(runs) > 1:
            in_turns(runs)
            return
        (run,) = runs
        run.begin_turn()
        run.record(run.execute())

    def _satisfied(self) -> bool:
        session, options = self.context.session, self.options
        if options.until_rel_ci is None or _blocks(session.plan) >= options.max_repeat:
            return True
        return settled(self.context.store.runs(), options.until_rel_ci, session.analyses)

    def _say(self, sentence: str) -> None:
        """Print a message; lines of a terminal are broken between words."""
        wraps = not self._console.is_terminal
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=wraps)


@dataclass(frozen=True)
class PendingRun:
    """A planned run that is about to be executed, as one of `together` that take turns."""

    execution: SessionExecution
    planned: PlannedRun
    attempt: int
    together: int

    @property
    def workers(self) -> int:
        return self.planned.nodes * self.planned.workers

    def begin_turn(self) -> None:
        self.execution.progress.start(self.planned)

    def execute(self, turn_socket: str | None = None, given_up: Callable[[], bool] = lambda: False) -> Run:
        context = self.execution.context
        reason = obstacle(self.planned, context.store.runs(), context.launcher)
        cell = self.execution.cell_of(self.planned)
        return execute_run(
            Attempt(self.planned, cell, self.attempt, reason, turn_socket),
            context,
            Supervision(
                # A run waits for the others for at most their time limits.
                self.together * context.study.timeout,
                lambda: self.execution.interrupted or given_up(),
                lambda state: self.execution.progress.watch(self.planned, state),
            ),
        )

    def record(self, run: Run) -> None:
        self.execution.context.store.append(run)
        self.execution.progress.end(run)


def remaining(
    plan: Sequence[PlannedRun], recorded: Sequence[Run], options: ResumeOptions | None = None
) -> list[tuple[PlannedRun, int]]:
    """Planned runs without a record, each with the number of its next attempt.

    An interrupted run counts as not recorded. A run that failed for an external reason also does, up to the
    number of retries in the options. Runs that take turns are repeated together.
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
    """Return the reason not to try a run, or None.

    A run is not tried if it cannot be launched, if its backend cannot work here, or if it was skipped in an
    earlier block.
    """
    said = [run.reason for run in recorded if run.cell == planned.cell and run.status == "skipped"]
    reason = launcher.obstacle(planned)
    if reason is not None:
        return reason
    return said[-1] if said else unavailable(planned.backend)


def settled(runs: Sequence[Run], relative: float, analyses: int) -> bool:
    """Whether every interval of a ratio to the baseline's time is within ± `relative` of the ratio.

    Comparisons are ignored if more blocks would not lead to a verdict on time.
    """
    open_ended = ("too few runs", "undecided", "faster", "slower", "equivalent")
    return all(
        (one.ratio_high - one.ratio_low) / 2 <= relative * one.ratio
        for one in compare(runs, analyses=analyses)
        if one.verdict in open_ended
    )


def _turn_takers(planned: PlannedRun) -> tuple[object, ...]:
    """Return a key that is equal for the runs of a block that take turns."""
    if not planned.interleaved:
        return planned.key
    return (planned.usecase, planned.phase, planned.block, *planned.settings().values())


def _together(todo: Sequence[tuple[PlannedRun, int]]) -> list[tuple[PlannedRun, int]]:
    """Return the first run, and the runs that take turns with it."""
    first = _turn_takers(todo[0][0])
    return [(planned, attempt) for planned, attempt in todo if _turn_takers(planned) == first]


def _warm_ups_failed(todo: Sequence[tuple[PlannedRun, int]], recorded: Sequence[Run]) -> bool:
    """Whether every warm-up has been tried and none has ended well."""
    warm_ups = [run for run in last_attempts(recorded) if run.phase == "warmup"]
    left = any(planned.phase == "warmup" for planned, _ in todo)
    return bool(warm_ups) and not left and all(run.status in BAD for run in warm_ups)


def _blocks(plan: Sequence[PlannedRun]) -> int:
    return 1 + max(run.block for run in plan)


def _is_infra(run: Run) -> bool:
    return run.status == "failed" and (run.failed_phase == "launch" or run.signal == "SIGKILL")


def _check_comparable(plan: Sequence[PlannedRun]) -> None:
    try:
        pairs = compared_cells(plan)
    except RecordError as error:
        problem, _, _ = str(error).partition(":")  # The remedy is of commands with --baseline.
        raise UsageError(
            f"--until-rel-ci compares every cell with a baseline ({problem}): "
            "leave it out, or run these cells in a study of their own"
        ) from error
    if not pairs:
        raise UsageError(
            "--until-rel-ci watches ratios to a baseline, and a single cell has none: name another backend"
        )


def _check_targets(study: Study) -> None:
    for usecase, target in study.targets.items():
        metric = load_usecase(usecase).metric
        for name in target:
            if name != metric:
                raise UsageError(
                    f"target {name!r} of use case {usecase!r} is not the use case's metric: {metric}"
                )
