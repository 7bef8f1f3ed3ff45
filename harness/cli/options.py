"""Options and helpers that several commands of the command line share."""

import functools
import inspect
import shutil
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from adabench.harness.errors import UsageError, unknown
from adabench.harness.plugins.registry import names
from adabench.harness.study.setting_parsing import SETTINGS, DeclaredSetting
from adabench.harness.study.study import (
    LARGEST_SEED,
    Study,
    built_in_studies,
    load_study,
    parse_target,
    quick_study,
)
from adabench.harness.study.syntax import parse_selections

Command = Callable[..., Any]


def completed(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Shell completion of a name, or of the last of several names."""

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [before + comma + name for name in known() if name.startswith(begun)]

    return complete


def _option(setting: DeclaredSetting) -> Any:
    """Return the option of a run setting. An option with several values may be repeated."""
    kind = bool if setting.kind is bool else list[str] if setting.about.several else str
    flag = "--" + setting.name.replace("_", "-")
    value = "N" if setting.kind is int else "NAME"
    shown = None if setting.kind is bool else f"{value}[,…]" if setting.about.several else value
    return Annotated[kind | None, typer.Option(flag, help=setting.about.help, metavar=shown)]


STUDY_OPTIONS: dict[str, Any] = {
    "study": Annotated[Path | None, typer.Argument(help="A study file.", metavar="[STUDY.toml]")],
    "study_name": Annotated[
        str | None,
        typer.Option(
            "--study",
            metavar="NAME",
            help="A study that comes with the project, see `adabench list studies`; `default` if neither a "
            "study nor a use case is given.",
            autocompletion=completed(built_in_studies),
        ),
    ],
    "usecases": Annotated[
        list[str] | None,
        typer.Option(
            "--usecase",
            "-u",
            metavar="NAME[,…]",
            help="Use case to train, such as ctr or 'ctr[dim=8,16]'; see `adabench list usecases`.",
            autocompletion=completed(lambda: names("usecase")),
        ),
    ],
    "backends": Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="NAME[,…]",
            help="Backend, such as manual,'prefetch[lookahead=0,10]'; see `adabench list backends`.",
            autocompletion=completed(lambda: names("backend")),
        ),
    ],
    "repeats": Annotated[
        str | None,
        typer.Option(
            "--repeats",
            "-r",
            metavar="N",
            help="Measured runs per cell; by default as many as are needed to detect a difference of 5 %.",
        ),
    ],
    "quick": Annotated[
        bool | None,
        typer.Option("--quick", help="Quick check: one block without a warm-up, with one epoch per run."),
    ],
    **{name: _option(setting) for name, setting in SETTINGS.items()},
    "timeout": Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit of a run, such as 90s or 20m.")
    ],
    "seed": Annotated[
        str | None,
        typer.Option(metavar="N", help="Seed for the run order and the first block; each block adds 1."),
    ],
    "data": Annotated[
        str | None, typer.Option(metavar="PATH", help="Folder or file of the use case's data.")
    ],
    "launcher": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Launcher that starts the processes of runs; see `adabench list launchers`.",
            autocompletion=completed(lambda: names("launcher")),
        ),
    ],
    "target": Annotated[
        str | None,
        typer.Option(metavar="METRIC=VALUE", help="Quality that runs have to reach, such as auc=0.74."),
    ],
}
"""Argument and options that describe a study; the options of run settings come from their declarations."""

Results = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the sessions; by default results/sessions in a clone, else adabench-results."
    ),
]
SessionName = Annotated[str | None, typer.Argument(help="A session; the newest without it.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder or file of the use case's data.")]
OneUseCase = Annotated[
    str, typer.Option("--usecase", "-u", help="Use case to train, such as ctr or 'ctr[dim=8]'.")
]
ServerBackend = Annotated[str, typer.Option("--backend", "-b", help="Backend on the parameter server.")]
Links = Annotated[
    str | None,
    typer.Option("--network", help="Network, such as lan or 0.5ms,2gbit; by default as in --resources."),
]
CostedResources = Annotated[
    Path | None, typer.Option("--resources", help="The cluster, as `adabench resources --costs` writes it.")
]
SEED: Any = typer.Option(
    "--seed",
    min=0,
    max=LARGEST_SEED,
    metavar="N",
    help="Seed for the initial weights, the data order, and everything else that is drawn at random.",
)
Seed = Annotated[int, SEED]
Workers = Annotated[int, typer.Option("--workers", help="Worker threads per node.")]
StepMilliseconds = Annotated[
    float | None,
    typer.Option("--step", metavar="MS", help="Compute time of a step, in milliseconds of one core."),
]


def at_least_one(**given: int) -> None:
    """Refuse numbers below 1, by the names of their options."""
    for name, value in given.items():
        if value < 1:
            raise UsageError(f"--{name} {value}: give 1 or more")


def takes_study(without: Collection[str] = (), **fixed: Any) -> Callable[[Command], Command]:
    """Give a command all of `STUDY_OPTIONS`; its parameter `study` is the study that they describe.

    Options in `without` are left out, and `fixed` has keys of the study that the command sets itself.
    """

    def described(**given: Any) -> Study:
        own = ("study", "study_name", "target", "quick")
        file, study, target, quick = (given.pop(name, None) for name in own)
        if quick and given.get("repeats") is not None:
            raise UsageError(f"--quick has one block, so it excludes --repeats {given['repeats']}: give one")
        found = study_from(file, study, {**given, **fixed}, target)
        return quick_study(found) if quick else found

    left_out = {*without, *fixed}
    taken = [_parameter(name, kind, None) for name, kind in STUDY_OPTIONS.items() if name not in left_out]
    return with_options("study", _with_parameters(described, taken))


def with_options(name: str, made: Callable[..., Any]) -> Callable[[Command], Command]:
    """Give a command the parameters of `made` as options; their values make its parameter `name`."""
    taken = _parameters(made)

    def taking(command: Command) -> Command:
        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            given = {one.name: arguments.pop(one.name) for one in taken}
            command(**{name: made(**given)}, **arguments)

        own = [one for one in _parameters(command) if one.name != name]
        return _with_parameters(called, [*taken, *own])

    return taking


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    given = inspect.signature(function).parameters.values()
    return [_parameter(one.name, hints[one.name], one.default) for one in given]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _with_parameters(function: Command, parameters: list[inspect.Parameter]) -> Command:
    """Return the function with these parameters in its signature, which typer reads."""
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def study_from(
    file: Path | None, name: str | None, overrides: Mapping[str, Any], target: str | None
) -> Study:
    """Return the study of a command line: a file, a study of the project, or only use cases and backends."""
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
    """Return the folder of the sessions."""
    if results is not None:
        return results.expanduser()
    in_clone = Path("results/record.py").is_file() and Path("harness/cli/main.py").is_file()
    return Path("results/sessions") if in_clone else Path("adabench-results")


def recorded_root(results: Path | None) -> Path:
    """Return the folder of the sessions to read, which must exist if it is named."""
    root = results_root(results)
    if results is not None and not root.is_dir():
        raise UsageError(f"--results {results}: there is no such folder; name the folder of the sessions")
    return root


def shown(file: Path) -> str:
    """A path, relative to this folder if possible."""
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def terminal_width() -> int | None:
    """Return the terminal's width in characters; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
