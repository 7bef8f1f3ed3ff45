"""``adabench doctor`` and ``adabench data fetch``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adabench.harness.errors import UsageError

__all__ = ["doctor", "fetch"]


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


def doctor(
    aa: Annotated[
        bool,
        typer.Option(
            "--aa", help="Measure the noise floor: the same run, twelve times, compared with itself."
        ),
    ] = False,
) -> None:
    """Say what this machine is, and how noisy; exit with 1 if measurements would suffer."""
    from adabench.harness.doctor import examine, noise_floor

    lines, complaints = examine()
    for line in lines:
        typer.echo(line)
    if aa:
        typer.echo(noise_floor(typer.echo))
    for complaint in complaints:
        typer.echo(f"warning: {complaint}")
    raise typer.Exit(1 if complaints else 0)
