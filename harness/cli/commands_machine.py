"""``adabench doctor`` and ``adabench data fetch``."""

from pathlib import Path
from typing import Annotated

import typer

from adabench.harness.errors import UsageError


def fetch(
    name: Annotated[str, typer.Argument(help="Which data set.")],
    folder: Annotated[Path, typer.Option("--to", help="Folder for the graph.")] = Path("data"),
) -> None:
    """Download a graph for the use case gcn."""
    from adabench.usecases import gcn
    from adabench.usecases.interface import DataError

    try:
        typer.echo(str(gcn.fetch(name, folder)))
    except DataError as error:
        raise UsageError(str(error)) from error


def doctor(
    study: Annotated[
        Path | None, typer.Argument(help="Study file to check the available memory for.", show_default=False)
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove processes and scratch folders of crashed runs.")
    ] = False,
    aa: Annotated[
        bool,
        typer.Option(
            "--aa", help="Measure the noise floor: the same run, twelve times, compared with itself."
        ),
    ] = False,
) -> None:
    """Describe this machine, its noise, and missing prerequisites.

    Exits with 1 after a warning.
    """
    from adabench.analysis.tracking import working
    from adabench.harness.checks.doctor import examine, noise_floor
    from adabench.harness.study.study import load_study

    with working("examining this machine"):
        lines, complaints = examine(None if study is None else load_study(study, study.stem, {}), clean)
    for line in lines:
        typer.echo(line)
    if aa:
        typer.echo(noise_floor(typer.echo))
    for complaint in complaints:
        typer.echo(f"warning: {complaint}")
    raise typer.Exit(1 if complaints else 0)
