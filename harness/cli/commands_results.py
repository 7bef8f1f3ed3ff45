"""``adabench list``, ``show``, ``plot``, ``compare``, ``report`` and ``export``: what has been recorded."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.options import Results, SessionName, completed, results_root, shown, terminal_width
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError, unknown
from adabench.results.record import RecordError

if TYPE_CHECKING:
    from adabench.harness.plugins.registry import Kind
    from adabench.results.store import SessionStore

__all__ = ["compare", "export", "list_", "plot", "report", "show"]

REGRESSION = 3
"""Exit code of a comparison that fulfils the condition of ``--fail-if``, or that cannot be judged by it."""


PLUGINS: dict[str, Kind] = {
    "backends": "backend",
    "usecases": "usecase",
    "policies": "policy",
    "launchers": "launcher",
}
LISTED = (*PLUGINS, "studies", "sessions")


def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="backends, usecases, policies, launchers, studies or sessions.",
            autocompletion=completed(lambda: LISTED),
        ),
    ],
    results: Results = None,
) -> None:
    """List backends, use cases, policies, launchers, studies or sessions."""
    from adabench.harness.plugins.describe import describe_plugins
    from adabench.harness.study.study import built_in_studies
    from adabench.results.store import list_sessions

    rows: list[tuple[str, str]]
    if what in PLUGINS:
        for line in describe_plugins(PLUGINS[what], terminal_width()):
            tell(line)
        return
    if what == "studies":
        rows = [(name, _comment(file)) for name, file in built_in_studies().items()]
    elif what == "sessions":
        rows = [
            (store.folder.name, _session_summary(store)) for store in list_sessions(results_root(results))
        ]
    else:
        raise unknown("kind", what, LISTED)
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        lines = textwrap.wrap(text, max((terminal_width() or 10_000) - width - 2, 20)) or [""]
        for number, line in enumerate(lines):
            tell(f"{'' if number else name:<{width}}  {line}")


def show(
    name: Annotated[
        str | None, typer.Argument(help="A session or a run; the newest session without it.")
    ] = None,
    results: Results = None,
) -> None:
    """Show a session's runs and table, or all that is known of a run."""
    from adabench.analysis.tables import run_text, session_table
    from adabench.results.store import find_run, find_session

    root = results_root(results)
    try:
        store = find_session(root, name)
    except RecordError as no_session:
        if name is None:
            raise
        try:
            run_store, found = find_run(root, name)
        except RecordError:
            raise no_session from None
        tell(run_text(run_store, found))
        return
    session, runs = store.session(), store.runs()
    tell(f"{session.session}  {session.created_at}")
    tell(session.machine)
    tell(f"{len(runs)} runs recorded of {len(session.plan)} planned; command: {' '.join(session.command)}")
    for one in runs:
        line = f"  {one.run_id:<20} {one.phase:<8} block {one.block:>2}  {one.backend:<20} {one.status:<12}"
        tell(line + (one.reason or f"{one.seconds.total:.1f} s"))
    tell(session_table(runs, terminal_width()))


def plot(session: SessionName = None, results: Results = None) -> None:
    """Draw a session's figures, as PNG and SVG."""
    from adabench.analysis.figures import draw_figures
    from adabench.results.store import find_session

    for file in draw_figures(find_session(results_root(results), session)):
        tell(shown(file))


def compare(
    session: SessionName = None,
    other: Annotated[
        str | None, typer.Argument(help="Another session, whose cells are compared with the first one's.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The backend to compare with, such as 'prefetch' or 'prefetch[lookahead=20]'.",
            show_default="prefetch, else single, else the first by name",
        ),
    ] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(
            help="Exit with 3 if this holds for a backend, such as 'ratio_low > 1.03', or cannot be judged."
        ),
    ] = None,
    fail_undecided: Annotated[
        bool, typer.Option("--fail-undecided", help="With --fail-if: exit with 3 for 'undecided', too.")
    ] = False,
    results: Results = None,
) -> None:
    """Compare a session's backends, or the cells of two sessions.

    Backends are compared with one of them, the baseline, block by block.
    """
    from adabench.analysis.compare import UNJUDGED
    from adabench.analysis.compare import compare as compare_runs
    from adabench.analysis.fail_if import parse_condition
    from adabench.analysis.sessions import compare_sessions
    from adabench.analysis.tables import comparison_table, session_comparison_table
    from adabench.results.store import find_session

    if fail_undecided and fail_if is None:
        raise UsageError("--fail-undecided needs --fail-if, which says what fails otherwise")
    if other is not None:
        if baseline is not None or fail_if is not None:
            raise UsageError(
                "--baseline and --fail-if are for the backends of one session, not for two sessions"
            )
        stores = [find_session(results_root(results), name) for name in (session, other)]
        found_changes = compare_sessions(*(one.runs() for one in stores))
        tell(session_comparison_table(found_changes, *(one.folder.name for one in stores)))
        return
    condition = parse_condition(fail_if) if fail_if is not None else None
    store = find_session(results_root(results), session)
    found = compare_runs(store.runs(), baseline, analyses=store.session().analyses)
    tell(comparison_table(found, terminal_width()))
    if condition is None:
        return
    unjudged = ("undecided", *UNJUDGED) if fail_undecided else UNJUDGED
    failed = False
    for one in found:
        if one.verdict in unjudged:
            tell(
                f"cannot be judged: {one.usecase} {one.label}: {one.verdict}"
                + (f", {one.reason}" if one.reason else "")
            )
        elif condition(one):
            tell(f"regression: {one.usecase} {one.label}: {fail_if} holds")
        else:
            continue
        failed = True
    if not found:
        tell("cannot be judged: there is nothing to compare with the baseline")
    if failed or not found:
        raise typer.Exit(REGRESSION)


def report(
    session: SessionName = None,
    baseline: Annotated[
        str | None, typer.Option(help="The backend to compare with, as in `compare`.")
    ] = None,
    results: Results = None,
) -> None:
    """Write a session's report: an HTML file that needs no other."""
    from adabench.analysis.report import write_report
    from adabench.results.store import find_session

    tell(shown(write_report(find_session(results_root(results), session), baseline)))


def export(
    session: SessionName = None,
    to: Annotated[str, typer.Option(help="csv, parquet or json.")] = "csv",
    results: Results = None,
) -> None:
    """Write all recorded runs of a session as one table."""
    from adabench.analysis.export import FORMATS, export_runs
    from adabench.results.store import find_session

    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    tell(shown(export_runs(find_session(results_root(results), session), to)))


def _comment(file: Path) -> str:
    """What a study file says of itself first."""
    lines = itertools.takewhile(
        lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines()
    )
    return " ".join(line.lstrip("# ").strip() for line in lines)


def _session_summary(store: SessionStore) -> str:
    try:
        session, runs = store.session(), store.runs()
    except RecordError as error:
        return f"cannot be read: {error}"
    good = sum(one.status == "ok" for one in runs)
    return f"{session.created_at}  {good} ok of {len(runs)} recorded of {len(session.plan)} planned"
