"""``adabench check`` and ``adabench new``: for authors of backends and use cases."""

from pathlib import Path
from typing import Annotated

import typer

from adabench.harness.errors import unknown

KINDS = ("backend", "usecase")

Kind = Annotated[str, typer.Argument(help="backend or usecase.")]


def check(
    kind: Kind,
    name: Annotated[str, typer.Argument(help="The plugin's name.")],
    data: Annotated[
        Path | None, typer.Option(help="Data of the use case, if it does not generate its data.")
    ] = None,
) -> None:
    """Test whether a plugin keeps its protocol's promises.

    Exits with 1 if it does not.
    """
    from adabench.harness.checks.check_backend import check_backend
    from adabench.harness.checks.check_usecase import check_usecase

    if kind not in KINDS:
        raise unknown("kind of plugin", kind, KINDS)
    findings = check_backend(name) if kind == "backend" else check_usecase(name, data)
    failed = 0
    for finding in findings:
        failed += not finding.ok
        typer.echo(
            f"{'ok' if finding.ok else 'FAILED':<6} {finding.promise}"
            + (f": {finding.detail}" if finding.detail else "")
        )
    raise typer.Exit(1 if failed else 0)


def new(
    kind: Kind,
    name: Annotated[str, typer.Argument(help="Name of the plugin, such as my-strategy.")],
    folder: Annotated[
        Path, typer.Option("--in", help="Folder that will contain the package's folder.")
    ] = Path(),
) -> None:
    """Write a package with a backend or use case that works as it is."""
    from adabench.harness.plugins.scaffold import write_package

    if kind not in KINDS:
        raise unknown("kind of plugin", kind, KINDS)
    package = write_package(kind, name, folder)
    typer.echo(f"{package}: install it, and check it:\n")
    typer.echo(f"    pip install -e {package}\n    adabench check {kind} {name}")
