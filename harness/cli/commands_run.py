"""``adabench run`` and ``adabench plan``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.options import (
    Results,
    results_root,
    shown,
    takes_study,
    terminal_width,
    with_options,
)
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.study.study import Study
from adabench.results.record import RecordError

if TYPE_CHECKING:
    from rich.console import Console

    from adabench.results.store import SessionStore


def _resume(
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new session even if one can be continued.")
    ] = False,
    retry_infra: Annotated[
        int, typer.Option(min=0, help="Number of times that a run is repeated if it was killed from outside.")
    ] = 0,
    until_rel_ci: Annotated[
        float | None,
        typer.Option(
            help="Add blocks until the interval of each ratio is within this fraction, such as 0.03."
        ),
    ] = None,
    max_repeat: Annotated[
        int, typer.Option(min=1, help="Maximum number of blocks with --until-rel-ci.")
    ] = 30,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            help="Write TensorBoard's event files into the session while runs train: loss, quality, local "
            "share, bytes and waiting time of each node.",
        ),
    ] = False,
) -> ResumeOptions:
    if until_rel_ci is not None and not 0 < until_rel_ci < 1:
        raise UsageError(f"--until-rel-ci must be between 0 and 1, got {until_rel_ci:g}. For example: 0.03.")
    return ResumeOptions(fresh, retry_infra, until_rel_ci, max_repeat, tensorboard=tensorboard)


@takes_study()
@with_options("resume", _resume)
def run(
    study: Study,
    resume: ResumeOptions,
    results: Results = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Network interface, or its address, at which other hosts reach this one; by default the "
            "one that reaches MASTER_ADDR.",
        ),
    ] = None,
    job: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE[,…]",
            help="Resources to request with --launcher slurm: hosts=2, time=2h, and options of "
            "sbatch such as partition=short.",
        ),
    ] = None,
) -> None:
    """Run a study; continue it if it was interrupted.

    For example `adabench run -u ctr -b manual,prefetch --nodes 2` compares two backends. Without arguments,
    the study `default` runs. Every run is recorded when it ends. The table and figures are made at the end.
    """
    from rich.console import Console

    from adabench.analysis.load import SUCCESS, last_attempts
    from adabench.harness.launch.launcher import LauncherOptions
    from adabench.harness.machine.interruption import Interruption
    from adabench.harness.plugins.registry import load_launcher
    from adabench.harness.session.execute import run_session
    from adabench.harness.session.progress import failure_lines
    from adabench.harness.study.plan import cells_of

    console = Console(soft_wrap=True)
    options = LauncherOptions(listen, lambda line: tell(line), job or ())
    with load_launcher(study.launcher)(options) as launcher:
        if launcher.is_agent:
            with Interruption() as stopped:
                raise typer.Exit(130 if launcher.serve(lambda: cells_of(study), stopped) else 0)
        store, interrupted = run_session(study, results_root(results), resume, console, launcher)
    _print_session(store, console)
    if interrupted:
        console.print("interrupted: the same command continues")
        raise typer.Exit(130)
    bad = [one for one in last_attempts(store.runs()) if one.status not in (*SUCCESS, "skipped")]
    for line in failure_lines(bad):
        console.print(line, highlight=False, markup=False)
    raise typer.Exit(1 if bad else 0)


@takes_study()
def plan(
    study: Study,
    results: Results = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print the exact order of the runs and the cells' identifiers."),
    ] = False,
) -> None:
    """Show the cells that `run` would train, and the expected time.

    Nothing is trained. The time comes from earlier runs of the same cells. `plan` takes the options of `run`
    that describe a study.
    """
    from adabench.analysis.tracking import working

    with working("loading use cases and their data"):
        from adabench.harness.session.plan_text import plan_text

        text = plan_text(study, results_root(results), terminal_width(), verbose=verbose)
    tell(text)


def _print_session(store: SessionStore, console: Console) -> None:
    """Draw the figures, and print the table, the paths of the files and the next commands."""
    from adabench.analysis.figures import draw_figures
    from adabench.analysis.load import SUCCESS
    from adabench.analysis.tables import session_table, write_table
    from adabench.results.store import warn

    runs = store.runs()
    if any(one.status in SUCCESS and one.phase == "measured" for one in runs):
        console.print(session_table(runs, terminal_width()), markup=False, highlight=False)
        try:
            console.print(f"table:   {shown(write_table(store))}", highlight=False)
            for file in draw_figures(store):
                console.print(f"figure:  {shown(file)}", highlight=False)
        except RecordError as error:
            # The runs are recorded, and the commands below can write these files later.
            warn(str(error))
    folder = shown(store.folder)
    console.print(f"session: {folder}", highlight=False)
    if (events := store.folder / "tensorboard").is_dir():
        console.print(f"watch:   tensorboard --logdir {shown(events)}", highlight=False)
    commands = ("compare", "report") if len({one.cell for one in runs}) > 1 else ("report",)
    for command in commands:
        console.print(f"next:    adabench {command} {shlex.quote(folder)}", highlight=False)
