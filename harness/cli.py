"""The command line. Imports what a command needs when it runs, so that help and mistakes answer at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adabench.harness.errors import UsageError, unknown
from adabench.results.record import RecordError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Benchmarks of intent signalling: use cases × strategies × repeated runs, recorded and plotted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data of use cases that is not generated.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        help="Where sessions are kept; by default results/sessions in a clone, else adabench-results.",
    ),
]


@app.command()
def run(
    study: Annotated[Path | None, typer.Argument(help="A study file.", metavar="[STUDY.toml]")] = None,
    study_name: Annotated[
        str | None,
        typer.Option("--study", help="A study that comes with the project; `default` without anything."),
    ] = None,
    usecase: Annotated[
        str | None, typer.Option("--usecase", "-u", help="ctr or 'ctr[dim=8,16]', comma-separated.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", "-b", help="manual,'prefetch[lookahead=0,10]', comma-separated."),
    ] = None,
    repeats: Annotated[str | None, typer.Option("--repeats", "-r", help="Measured runs a cell.")] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Node processes; several values are several cells.")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="Worker threads a node.")] = None,
    network: Annotated[
        str | None, typer.Option(help="loopback, lan, slow, or latency and bandwidth such as 0.5ms,2gbit.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="Of one run, such as 20m.")] = None,
    seed: Annotated[str | None, typer.Option(help="Of the first block.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder or file of the data.")] = None,
    target: Annotated[str | None, typer.Option(help="Quality to be reached, such as auc=0.74.")] = None,
    results: Results = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new session even if one can be continued.")
    ] = False,
    retry_infra: Annotated[
        int,
        typer.Option(min=0, help="How often a run is tried again whose processes were killed from outside."),
    ] = 0,
) -> None:
    """Run a study; continue it if it was interrupted."""
    from rich.console import Console

    from adabench.harness.execute import Policy, run_session

    console = Console(soft_wrap=True)
    overrides = {
        "usecases": usecase,
        "backends": backend,
        "repeats": repeats,
        "nodes": nodes,
        "workers": workers,
        "network": network,
        "timeout": timeout,
        "seed": seed,
        "data": data,
    }
    checked = _study(
        study, study_name, {key: value for key, value in overrides.items() if value is not None}, target
    )
    store, interrupted = run_session(checked, _root(results), Policy(fresh, retry_infra), console)
    runs = store.runs()
    if any(one.status == "ok" and one.phase == "measured" for one in runs):
        from adabench.analysis.figures import draw_figures
        from adabench.analysis.tables import session_table, write_table

        console.print(session_table(runs), markup=False, highlight=False)
        console.print(f"table:   {_shown(write_table(store))}", highlight=False)
        for file in draw_figures(store):
            console.print(f"figure:  {_shown(file)}", highlight=False)
    console.print(f"session: {_shown(store.folder)}", highlight=False)
    if interrupted:
        console.print("interrupted: the same command continues")
        raise typer.Exit(130)
    bad = [one for one in _last_attempts(runs) if one.status not in ("ok", "not_converged", "skipped")]
    for one in bad:
        console.print(
            f"{one.status}: {one.backend} ({one.run_id}): {one.reason}", highlight=False, markup=False
        )
    raise typer.Exit(1 if bad else 0)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="backends, usecases, studies or sessions.")],
    results: Results = None,
) -> None:
    """List what there is."""
    from adabench.harness import registry
    from adabench.harness.study import built_in_studies

    if what in ("backends", "usecases"):
        rows = list(registry.names("backend" if what == "backends" else "usecase").items())
    elif what == "studies":
        rows = [(name, _first_comment(file)) for name, file in built_in_studies().items()]
    elif what == "sessions":
        from adabench.results.store import list_sessions

        rows = [(store.folder.name, _session_summary(store)) for store in list_sessions(_root(results))]
    else:
        raise unknown("kind", what, ("backends", "usecases", "studies", "sessions"))
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        typer.echo(f"{name:<{width}}  {text}")


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(help="A session or a run; the newest session without it.")
    ] = None,
    results: Results = None,
) -> None:
    """Show a session's runs and table, or everything that is recorded of a run."""
    from adabench.analysis.tables import run_text, session_table
    from adabench.results.store import find_run, find_session

    root = _root(results)
    try:
        store = find_session(root, name)
    except RecordError as no_session:
        if name is None:
            raise
        try:
            run_store, found = find_run(root, name)
        except RecordError:
            raise no_session from None
        typer.echo(run_text(run_store, found))
        return
    session, runs = store.session(), store.runs()
    typer.echo(f"{session.session}  {session.created_at}  {session.machine}")
    typer.echo(f"{len(runs)} of {len(session.plan)} runs; command: {' '.join(session.command)}")
    for one in runs:
        line = f"  {one.run_id:<20} {one.phase:<8} block {one.block:>2}  {one.backend:<20} {one.status:<12}"
        typer.echo(line + (one.reason or f"{one.seconds.total:.1f} s"))
    typer.echo(session_table(runs))


@app.command()
def plot(
    session: Annotated[str | None, typer.Argument(help="A session; the newest without it.")] = None,
    results: Results = None,
) -> None:
    """Draw the figures of a session: one PNG and one SVG a use case."""
    from adabench.analysis.figures import draw_figures
    from adabench.results.store import find_session

    for file in draw_figures(find_session(_root(results), session)):
        typer.echo(_shown(file))


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Which data set.")],
    folder: Annotated[Path, typer.Option("--to", help="Where to put it.")] = Path("data"),
) -> None:
    """Download a graph for the use case gcn."""
    from adabench.usecases import gcn
    from adabench.usecases.protocol import DataError

    try:
        typer.echo(str(gcn.fetch(name, folder)))
    except DataError as error:
        raise UsageError(str(error)) from error


def main() -> None:
    """The entry point: a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except (UsageError, RecordError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _study(file: Path | None, name: str | None, overrides: dict[str, Any], target: str | None) -> Any:
    from adabench.harness.study import built_in_studies, load_study, parse_target
    from adabench.harness.syntax import parse_selections

    if file is not None and name is not None:
        raise UsageError(f"a study file ({file}) and --study {name} exclude each other: give one")
    if file is None and name is None and not overrides.keys() & {"usecases", "backends"}:
        name = "default"
    if file is None and name is None:
        if "usecases" not in overrides:
            raise UsageError("--backend alone does not say what to train: add --usecase, such as -u ctr")
        name = "-".join(selected.name for selected in parse_selections(overrides["usecases"]))
    elif file is None:
        studies = built_in_studies()
        if name not in studies:
            raise unknown("study", str(name), studies)
        file = studies[name]
    study = load_study(file, name or (file.stem if file is not None else "study"), overrides)
    if target is None:
        return study
    import msgspec

    wanted = parse_target(target)
    return msgspec.structs.replace(study, targets={selected.name: wanted for selected in study.usecases})


def _root(results: Path | None) -> Path:
    if results is not None:
        return results.expanduser()
    in_clone = Path("results/record.py").is_file() and Path("harness/cli.py").is_file()
    return Path("results/sessions") if in_clone else Path("adabench-results")


def _last_attempts(runs: list[Any]) -> list[Any]:
    return list({(one.cell, one.phase, one.block): one for one in runs}.values())


def _shown(file: Path) -> str:
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def _first_comment(file: Path) -> str:
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").strip()


def _session_summary(store: Any) -> str:
    session, runs = store.session(), store.runs()
    good = sum(one.status == "ok" for one in runs)
    return f"{session.created_at}  {good} ok of {len(runs)} recorded of {len(session.plan)} planned"


if __name__ == "__main__":
    main()
