"""Options and helpers that several commands of the command line share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from adabench.harness.errors import UsageError, unknown
from adabench.harness.planning.study import Study, built_in_studies, load_study, parse_target
from adabench.harness.planning.syntax import parse_selections
from adabench.harness.plugins.registry import names

__all__ = ["results_root", "shown", "study_from", "terminal_width"]

StudyFile = Annotated[Path | None, typer.Argument(help="A study file.", metavar="[STUDY.toml]")]


def _last(given: str, known: Iterable[str]) -> list[str]:
    """What the last of several names may be completed to."""
    before, comma, begun = given.rpartition(",")
    return [before + comma + name for name in known if name.startswith(begun)]


def _usecases(incomplete: str) -> list[str]:
    return _last(incomplete, names("usecase"))


def _backends(incomplete: str) -> list[str]:
    return _last(incomplete, names("backend"))


def _studies(incomplete: str) -> list[str]:
    return [name for name in built_in_studies() if name.startswith(incomplete)]


StudyName = Annotated[
    str | None,
    typer.Option(
        "--study", help="A study of the project; `default` if nothing is said.", autocompletion=_studies
    ),
]
# Those that name several values may be given several times, which adds up.
UseCases = Annotated[
    list[str] | None,
    typer.Option("--usecase", "-u", help="Such as ctr or 'ctr[dim=8,16]'.", autocompletion=_usecases),
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend", "-b", help="Such as manual,'prefetch[lookahead=0,10]'.", autocompletion=_backends
    ),
]
Repeats = Annotated[
    str | None,
    typer.Option(
        "--repeats", "-r", help="Measured runs per cell; by default as many as verdicts on 5 % take."
    ),
]
Interleaved = Annotated[
    bool | None,
    typer.Option(
        "--interleaved",
        help="The runs of a block take turns, an epoch each: for noisy machines; all are in memory at once.",
    ),
]
TurnSteps = Annotated[
    str | None, typer.Option(help="Steps of a turn with --interleaved, instead of an epoch.")
]
Nodes = Annotated[list[str] | None, typer.Option(help="Node processes; several values are several cells.")]
Workers = Annotated[list[str] | None, typer.Option(help="Worker threads per node.")]
Network = Annotated[
    list[str] | None,
    typer.Option(help="loopback, lan, slow, or such as 0.5ms,2gbit; namespaces:lan slows down all sockets."),
]
Timeout = Annotated[str | None, typer.Option(help="Of one run, such as 20m.")]
Seed = Annotated[str | None, typer.Option(help="Of the first block; each block has the next.")]
Data = Annotated[str | None, typer.Option(help="Folder or file of the data.")]
Target = Annotated[str | None, typer.Option(help="Quality to be reached, such as auc=0.74.")]
Results = Annotated[
    Path | None,
    typer.Option(
        help="Where sessions are kept; by default results/sessions in a clone, else adabench-results."
    ),
]
SessionName = Annotated[str | None, typer.Argument(help="A session; the newest without it.")]


def study_from(
    file: Path | None, name: str | None, overrides: Mapping[str, Any], target: str | None
) -> Study:
    """The study that a command line describes: a file, one of the project's, or use cases and backends alone.

    Raises
    ------
    UsageError
        For every mistake that can be found without asking plugins.
    """
    given = {
        key: ",".join(value) if isinstance(value, list) else value
        for key, value in overrides.items()
        if value is not None and value != []
    }
    if file is not None and name is not None:
        raise UsageError(f"a study file ({file}) and --study {name} exclude each other: give one")
    if file is None and name is None and not given.keys() & {"usecases", "backends"}:
        name = "default"
    if file is not None:
        study = load_study(file, file.stem, given)
    elif name is not None:
        studies = built_in_studies()
        if name not in studies:
            raise unknown("study", name, studies)
        study = load_study(studies[name], name, given)
    elif "usecases" in given:
        title = "-".join(selected.name for selected in parse_selections(given["usecases"]))
        study = load_study(None, title, given)
    else:
        raise UsageError("--backend alone does not say what to train: add --usecase, such as -u ctr")
    if target is None:
        return study
    wanted = parse_target(target)
    return msgspec.structs.replace(study, targets={selected.name: wanted for selected in study.usecases})


def results_root(results: Path | None) -> Path:
    """The folder that sessions are kept in."""
    if results is not None:
        return results.expanduser()
    in_clone = Path("results/record.py").is_file() and Path("harness/cli/main.py").is_file()
    return Path("results/sessions") if in_clone else Path("adabench-results")


def shown(file: Path) -> str:
    """A path as short as it can be said from here."""
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def terminal_width() -> int | None:
    """Characters per line of the terminal; None where standard output is none, so nothing has to fit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
