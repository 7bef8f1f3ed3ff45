"""``adabench list``, ``show``, ``plot``, ``compare``, ``report`` and ``export``: the recorded sessions."""

from __future__ import annotations

import itertools
import shlex
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adabench.harness.cli.options import (
    Results,
    SessionName,
    completed,
    recorded_root,
    results_root,
    shown,
    terminal_width,
)
from adabench.harness.cli.terminal import plain, tell
from adabench.harness.errors import UsageError, unknown
from adabench.results.record import RecordError

if TYPE_CHECKING:
    from adabench.analysis.compare import Comparison
    from adabench.harness.plugins.registry import Kind
    from adabench.results.store import SessionStore

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
    name: Annotated[
        str | None, typer.Argument(help="Name to list with its parameters; by default all names.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List the parameters of all plugins.")
    ] = False,
    results: Results = None,
) -> None:
    """List backends, use cases, sessions, or another kind of names."""
    from adabench.analysis.tracking import working
    from adabench.harness.plugins.describe import describe_plugin, plugin_summaries
    from adabench.harness.study.study import built_in_studies
    from adabench.results.store import list_sessions

    if what in PLUGINS:
        with working("loading plugins"):
            rows = plugin_summaries(PLUGINS[what])
    elif what == "studies":
        rows = {each: _comment(file) for each, file in built_in_studies().items()}
    elif what == "sessions":
        rows = {store.folder.name: _session_summary(store) for store in list_sessions(recorded_root(results))}
    else:
        raise unknown("kind", what, LISTED)
    if name is not None:
        if name not in rows:
            raise unknown(f"name in the list of {what}", name, rows)
        rows = {name: rows[name]}
    columns, width = terminal_width(), max(map(len, rows), default=0)
    for each, text in rows.items():
        lines = textwrap.wrap(text, max((columns or 10_000) - width - 2, 20)) or [""]
        for number, line in enumerate(lines):
            tell(f"{'' if number else each:<{width}}  {line}")
        if what in PLUGINS and (name is not None or verbose):
            for line in describe_plugin(PLUGINS[what], each, columns):
                tell(line)
    if what in ("backends", "usecases", "policies") and name is None and not verbose:
        tell(f"\nadabench list {what} NAME lists the parameters of one, and --verbose of all")


def show(
    name: Annotated[str | None, typer.Argument(help="Session or run; by default the newest session.")] = None,
    all_runs: Annotated[
        bool, typer.Option("--runs", help="List all runs of the session, warm-ups included.")
    ] = False,
    results: Results = None,
) -> None:
    """Show a session's table, or all details of a run."""
    from adabench.analysis.tables import run_text, runs_table, session_table
    from adabench.harness.session.progress import failure_lines
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
    if table := session_table(runs, terminal_width()):
        tell(f"{table}\n")
    tell(f"{session.session}  {session.created_at}")
    tell(session.machine)
    good = sum(one.status == "ok" for one in runs)
    tell(f"{good} runs ok of {len(runs)} recorded and {len(session.plan)} planned; --runs lists them")
    tell(f"command: {shlex.join(session.command)}")
    for line in failure_lines([one for one in runs if one.status != "ok"]):
        tell(line)
    if all_runs:
        tell(f"\n{runs_table(runs, terminal_width())}")


def plot(session: SessionName = None, results: Results = None) -> None:
    """Draw a session's figures, as PNG and SVG."""
    from adabench.analysis.tracking import working
    from adabench.results.store import find_session

    with working("drawing figures"):
        from adabench.analysis.figures import draw_figures

        files = draw_figures(find_session(results_root(results), session))
    for file in files:
        tell(shown(file))


def compare(
    session: SessionName = None,
    other: Annotated[
        str | None, typer.Argument(help="Another session, to compare its cells with the first.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Baseline, such as 'prefetch' or 'prefetch[lookahead=20]'.",
            show_default="prefetch, else single, else the first by name",
        ),
    ] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(
            help="Exit with 3 if this condition is true for a backend, such as 'ratio_low > 1.03', or "
            "cannot be judged."
        ),
    ] = None,
    fail_undecided: Annotated[
        bool, typer.Option("--fail-undecided", help="With --fail-if: also exit with 3 for 'undecided'.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a page: names are not wrapped.")
    ] = False,
    results: Results = None,
) -> None:
    """Compare a session's backends, or the cells of two sessions.

    Backends are compared with one of them, the baseline, block by block. Without a name, the newest session
    is used, except sessions of `profile`.
    """
    from adabench.analysis.compare import compare as compare_runs
    from adabench.analysis.fail_if import parse_condition
    from adabench.analysis.sessions import compare_sessions
    from adabench.analysis.tables import comparison_json, comparison_table, session_comparison_table
    from adabench.results.store import find_session

    if fail_undecided and fail_if is None:
        raise UsageError("--fail-undecided needs --fail-if with a condition")
    if json and markdown:
        raise UsageError("--json and --markdown exclude each other: give one")
    width = None if markdown else terminal_width()
    if other is not None:
        if baseline is not None or fail_if is not None:
            raise UsageError(
                "--baseline and --fail-if are for the backends of one session, not for two sessions"
            )
        stores = [find_session(results_root(results), name) for name in (session, other)]
        found_changes = compare_sessions(*(one.runs() for one in stores))
        before, after = (one.folder.name for one in stores)
        text = session_comparison_table(found_changes, before, after, width)
        typer.echo(comparison_json(found_changes, before=before, after=after) if json else plain(text))
        return
    condition = parse_condition(fail_if) if fail_if is not None else None
    store = find_session(results_root(results), session, profiles=False)
    found = compare_runs(store.runs(), baseline, analyses=store.session().analyses)
    text = f"{'## ' * markdown}session {store.folder.name}\n\n{comparison_table(found, width)}"
    typer.echo(comparison_json(found, session=store.folder.name) if json else plain(text))
    if condition is not None:
        complaints = _complaints(found, condition, f"{fail_if} holds", fail_undecided)
        for line in complaints:
            typer.echo(plain(line), err=json)
        raise typer.Exit(REGRESSION if complaints else 0)


def _complaints(
    found: Sequence[Comparison], condition: Callable[[Comparison], bool], holds: str, undecided: bool
) -> list[str]:
    """Return a line for each comparison that fulfils the condition or cannot be judged by it."""
    from adabench.analysis.compare import UNJUDGED

    if not found:
        return ["cannot be judged: there is nothing to compare with the baseline"]
    lines = []
    for one in found:
        if one.verdict in UNJUDGED or (undecided and one.verdict == "undecided"):
            reason = f", {one.reason}" if one.reason else ""
            lines.append(f"cannot be judged: {one.usecase} {one.label}: {one.verdict}{reason}")
        elif condition(one):
            lines.append(f"regression: {one.usecase} {one.label}: {holds}")
    return lines


def report(
    session: SessionName = None,
    baseline: Annotated[
        str | None, typer.Option(help="Baseline of the comparisons, as in `compare`.")
    ] = None,
    all_sessions: Annotated[
        bool, typer.Option("--all", help="Write one sortable table of the cells of all sessions instead.")
    ] = False,
    results: Results = None,
) -> None:
    """Write a session's report as one self-contained HTML file."""
    from adabench.analysis.tracking import working
    from adabench.results.store import find_session

    if all_sessions and (session is not None or baseline is not None):
        raise UsageError("--all is about all sessions: leave out the session and --baseline")
    with working("writing the report"):
        from adabench.analysis.overview import write_overview
        from adabench.analysis.report import write_report

        if all_sessions:
            file = write_overview(results_root(results))
        else:
            file = write_report(find_session(results_root(results), session), baseline)
    tell(shown(file))


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
    """Return the first comment of a study file."""
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
