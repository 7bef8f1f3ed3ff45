"""``adabench profile``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from adabench.harness.cli.options import Results, results_root, shown, takes_study
from adabench.harness.errors import UsageError
from adabench.harness.study.study import Study

if TYPE_CHECKING:
    from adabench.results.record import Run
    from adabench.results.store import SessionStore


# A single run does not take turns with other runs.
@takes_study(without=("interleaved", "turn_steps", "target", "launcher", "quick"), repeats=1)
def profile(study: Study, results: Results = None) -> None:
    """Run one cell once and show the parts of a step's time.

    Writes a time budget of the training steps and a flame graph of every node. For example: `adabench profile
    -u ctr -b autoada-automatic`.
    """
    from adabench.analysis.budgets import budget_text
    from adabench.analysis.figures import draw_figures

    store, run = _profiled(study, results_root(results))
    typer.echo(f"session: {shown(store.folder)}")
    if run is None:
        typer.echo("interrupted: nothing was recorded")
        raise typer.Exit(130)
    if run.status != "ok":
        typer.echo(f"{run.status}: {run.backend} ({run.run_id}): {run.reason}")
        raise typer.Exit(1)
    typer.echo(budget_text(run))
    for file in draw_figures(store):
        typer.echo(f"figure:  {shown(file)}")
    for line in _flames(_folder(store), run.nodes):
        typer.echo(line)


def _profiled(study: Study, root: Path) -> tuple[SessionStore, Run | None]:
    """The session of the one run; no run if it was interrupted."""
    from adabench.analysis.tracking import working
    from adabench.harness.launch.launcher import Supervision
    from adabench.harness.launch.local import Local
    from adabench.harness.machine.interruption import Interruption
    from adabench.harness.machine.scratch import sweep
    from adabench.harness.plugins.registry import unavailable
    from adabench.harness.session.one_run import Attempt, SessionContext, execute_run
    from adabench.harness.session.open_session import open_session
    from adabench.harness.study.plan import cells_of

    if study.launcher != Local.name:
        raise UsageError(f"profile takes runs on this machine, and the study's launcher is {study.launcher}")
    with working("loading use cases and their data"):
        cells = cells_of(study)
    if len(cells) != 1:
        named = ", ".join(dict.fromkeys(f"{cell.usecase} with {cell.backend}" for cell in cells))
        raise UsageError(
            f"profile takes one cell, and this selection has {len(cells)} ({named}): give one use case, "
            "backend and topology, such as -u ctr -b autoada-automatic --nodes 2"
        )
    sweep()
    with (
        open_session(study, cells, root, True, typer.echo) as (store, session),
        Interruption() as stopped,
        Local() as launcher,
    ):
        (planned,) = session.plan
        folder = _folder(store)
        folder.mkdir()
        launcher.prepare()
        run = execute_run(
            Attempt(planned, cells[0], obstacle=unavailable(planned.backend), profile=folder),
            SessionContext(study, session, store, launcher),
            Supervision(study.timeout, stopped),
        )
        if run.status == "interrupted":
            return store, None
        store.append(run)
    return store, run


def _folder(store: SessionStore) -> Path:
    return store.folder / "profile"


def _flames(folder: Path, ranks: int) -> list[str]:
    from adabench.harness.run.profile import flame_file, no_flame_file

    lines = []
    for rank in range(ranks):
        drawn, reason = flame_file(folder, rank), no_flame_file(folder, rank)
        if drawn.is_file():
            lines.append(f"flames:  {shown(drawn)}")
        else:
            lines.append(f"no flame graph of rank {rank}: {reason.read_text(encoding='utf-8').strip()}")
    return lines
