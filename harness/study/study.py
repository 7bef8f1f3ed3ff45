"""A study: its cells and runs. It is read from TOML, and options of the command line replace its values."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from adabench.harness.errors import UsageError, unknown
from adabench.harness.plugins.registry import names
from adabench.harness.study.selection import Pattern, checked_patterns
from adabench.harness.study.setting_parsing import SETTINGS, combined_settings
from adabench.harness.study.syntax import (
    Selection,
    as_list,
    between,
    check_number,
    check_slow_pair,
    checked_text,
    parse_duration,
    parse_selections,
    switch,
)
from adabench.results.run_settings import RunSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STRATEGIES = "manual,prefetch,autoada-manual,autoada-automatic"

T = TypeVar("T")

MOST_REPEATS = 10_000
LARGEST_SEED = 2**31
MOST_BYTES = 1 << 20
"""Maximum length of a study file."""

_FOLDER = Path(__file__).parents[1] / "studies"


class SimulatedSteps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps of a simulated study.

    Attributes
    ----------
    steps : int
        Number of steps of each worker.
    steps_before : int
        Number of steps of the training before these. In a long training, copies may be older.
    compute_ms : dict of str to float
        Compute time of a step, in milliseconds of one core, by use case as on the command line. It is
        measured for other use cases.
    """

    steps: Annotated[int, msgspec.Meta(ge=1)] = 100
    steps_before: Annotated[int, msgspec.Meta(ge=0)] = 0
    compute_ms: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """A checked study, before plugins are asked about their parameters.

    Attributes
    ----------
    usecases, backends : list of Selection
        Names of use cases and backends, with the values to try of each parameter.
    settings : list of RunSettings
        Settings of the cells. Each item creates separate cells; a cell on one node has no network.
    repeats : int
        Number of blocks, hence of measured runs per cell; 0 for the number that verdicts need.
    seed : int
        Seed of block 0; block b trains with seed + b.
    timeout : float
        Seconds after which a run's process group is killed.
    warmup : bool
        Whether a discarded block of one epoch per cell comes first.
    data : dict
        Folder or file of the data, by use case. It is missing if the use case generates its data.
    targets : dict
        Required value of a metric, by use case and metric.
    include, exclude : list of Pattern
        Patterns that select the cells of the study from all combinations.
    sample : int
        Number of these cells to draw at random by the seed; 0 for all.
    launcher : str
        Name of the launcher of its runs.
    simulation : SimulatedSteps, optional
        Steps of each cell. Such a study is only simulated.
    """

    name: str
    usecases: list[Selection]
    backends: list[Selection]
    settings: list[RunSettings]
    repeats: int
    seed: int
    timeout: float
    warmup: bool
    data: dict[str, str]
    targets: dict[str, dict[str, float]]
    include: list[Pattern] = []
    exclude: list[Pattern] = []
    sample: int = 0
    launcher: str = "local"
    simulation: SimulatedSteps | None = None


def _launcher(value: Any) -> str:
    launcher = checked_text(value)
    if launcher not in names("launcher"):
        raise unknown("launcher", launcher, names("launcher"))
    return launcher


def _simulation(value: Any) -> SimulatedSteps | None:
    try:
        return None if value is None else msgspec.convert(value, SimulatedSteps)
    except msgspec.ValidationError as error:
        raise UsageError(f"{value!r} does not describe steps: {error}") from error


_KEYS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "repeats": (None, lambda value: 0 if value is None else between(1, value, MOST_REPEATS)),
    "seed": (1, lambda value: between(0, value, LARGEST_SEED)),
    "timeout": ("20m", lambda value: parse_duration(str(value))),
    "warmup": (True, switch),
    "include": ([], checked_patterns),
    "exclude": ([], checked_patterns),
    "sample": (0, lambda value: between(0, value, MOST_REPEATS)),
    "launcher": ("local", _launcher),
    "simulation": (None, _simulation),
}
"""Key of a study file that is read separately -> default, and the function that checks a value."""

_DEFAULTS: dict[str, Any] = {
    "usecases": [],
    "backends": STRATEGIES,
    "data": {},
    "targets": {},
    "params": {},
    "options": {},
    **{setting.name: setting.default for setting in SETTINGS.values()},
    **{key: default for key, (default, _) in _KEYS.items()},
}


def built_in_studies() -> dict[str, Path]:
    """Name -> file of the studies that the project includes."""
    return {file.stem: file for file in sorted(_FOLDER.glob("*.toml"))}


def load_study(file: Path | None, name: str, overrides: Mapping[str, Any]) -> Study:
    """Merge defaults, a study file and the command line, in rising order of precedence.

    `file` is None for a study that the command line describes alone; `overrides` has the keys that it gives.
    Raises `UsageError`, which names the file and key, or the command line's option.
    """
    given = _GivenValues(file, overrides)
    usecases = given.read("usecases", _selections)
    backends = given.read("backends", _selections)
    given.read("params", lambda value: _merge_tables(usecases, value, "usecases"))
    given.read("options", lambda value: _merge_tables(backends, value, "backends"))
    values = {setting.name: given.read(setting.name, setting.read) for setting in SETTINGS.values()}
    for setting in SETTINGS.values():
        with given.located(setting.name):
            setting.check(values)
    with given.located("nodes"):
        settings = combined_settings(values)
    with given.located("network"):
        for one in settings:
            if one.nodes > 1:  # A single node has no links.
                check_slow_pair(one.network, one.nodes)
    folder = Path() if file is None or "data" in overrides else file.parent
    return Study(
        name=name,
        usecases=usecases,
        backends=backends,
        settings=settings,
        data=given.read("data", lambda value: _data(value, usecases, folder)),
        targets=given.read("targets", lambda value: _targets(value, usecases)),
        **{key: given.read(key, check) for key, (_, check) in _KEYS.items()},
    )


class _GivenValues:
    """Values of a study's keys, each with the place where it was given."""

    def __init__(self, file: Path | None, overrides: Mapping[str, Any]) -> None:
        table = {} if file is None else _read_toml(file)
        for key in table:
            if key not in _DEFAULTS:
                raise UsageError(f"{file}: {unknown('key', key, _DEFAULTS)}")
        self._values = {**_DEFAULTS, **table, **overrides}
        self._origin = {
            **dict.fromkeys(_DEFAULTS, "default of"),
            **dict.fromkeys(table, f"{file}:"),
            **dict.fromkeys(overrides, "option"),
        }

    def read(self, key: str, check: Callable[[Any], T]) -> T:
        """A key's value as `check` returns it."""
        with self.located(key):
            return check(self._values[key])

    @contextmanager
    def located(self, key: str) -> Iterator[None]:
        """Name the file and key, or the option, of a mistake in the body."""
        try:
            yield
        except UsageError as error:
            raise UsageError(f"{self._origin[key]} {key}: {error}") from error


def quick_study(study: Study) -> Study:
    """The study with one block, and one epoch per run: it shows the strategies and measures nothing."""
    usecases = [msgspec.structs.replace(one, values={**one.values, "epochs": [1]}) for one in study.usecases]
    return msgspec.structs.replace(study, usecases=usecases, repeats=1, warmup=False)


def parse_target(text: str) -> dict[str, float]:
    """``auc=0.74`` as a table."""
    metric, _, value = text.partition("=")
    try:
        target = float(value)
    except ValueError as error:
        raise UsageError(f"target {text!r} is not of the form metric=value, such as auc=0.74") from error
    if not math.isfinite(target):
        raise UsageError(f"target {text!r} can never be reached: give a finite value")
    return {metric.strip(): target}


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UsageError(f"study file {file} is longer than {MOST_BYTES >> 20} MiB: split it")
        return tomllib.loads(content.decode())
    except FileNotFoundError as error:
        raise UsageError(f"there is no study file {file}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"study file {file} cannot be read: {error}") from error
    except RecursionError as error:
        raise UsageError(
            f"study file {file} is nested too deeply: a study needs tables and lists only"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not TOML: {error}") from error


def _selections(value: Any) -> list[Selection]:
    texts = as_list(value)
    selections = [selection for text in texts for selection in parse_selections(checked_text(text))]
    if not selections:
        raise UsageError("at least one name is needed")
    check_number("names", len(selections))
    seen: set[bytes] = set()
    for selection in selections:
        if (key := msgspec.json.encode(selection, order="deterministic")) in seen:
            raise UsageError(f"{selection.name!r} is listed twice with the same parameters")
        seen.add(key)
    return selections


def _merge_tables(selections: list[Selection], tables: Any, plural: str) -> None:
    """Merge ``[params.ctr]`` into the selection, whose values take precedence."""
    if not isinstance(tables, dict):
        raise UsageError(f"{tables!r} is not a table")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{name} = {table!r} is not a table of parameters")
        chosen = [selection for selection in selections if selection.name == name]
        if not chosen:
            raise unknown(f"name among {plural}", name, {selection.name for selection in selections})
        for selection in chosen:
            for parameter, value in table.items():
                values = as_list(value)
                if not values:
                    raise UsageError(f"{name}.{parameter} is an empty list: it needs at least one value")
                selection.values.setdefault(parameter, values)


def _data(value: Any, usecases: list[Selection], folder: Path) -> dict[str, str]:
    """Use case -> path; a relative path in a study file is relative to that file."""
    names = {selection.name for selection in usecases}
    table = value if isinstance(value, dict) else dict.fromkeys(names, value)
    places = {}
    for name, path in table.items():
        if name not in names:
            raise unknown("use case", name, names)
        if not isinstance(path, str) or "\0" in path:
            raise UsageError(f"{path!r} is not a path")
        places[name] = str((folder / Path(path).expanduser()).resolve())
        try:
            places[name].encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the path {places[name]!r} is not UTF-8, but records can only contain UTF-8"
            ) from error
    return places


def _targets(value: Any, usecases: list[Selection]) -> dict[str, dict[str, float]]:
    if not isinstance(value, dict):
        raise UsageError(f"{value!r} is not a table")
    names = {selection.name for selection in usecases}
    for name, table in value.items():
        if name not in names:
            raise unknown("use case", name, names)
        if not isinstance(table, dict):
            raise UsageError(f"{name} = {table!r} is not a table metric = value")
        for metric, target in table.items():
            if isinstance(target, bool) or not isinstance(target, int | float) or not math.isfinite(target):
                kind = "a finite number" if isinstance(target, float) else "a number"
                raise UsageError(f"{name}.{metric} = {target!r} is not {kind}")
    return {name: {metric: float(one) for metric, one in table.items()} for name, table in value.items()}
