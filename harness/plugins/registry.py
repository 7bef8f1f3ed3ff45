"""Finds plugins (backends, use cases, builders, launchers) in files of the project and in entry points.

Listing names imports no large package; only plugins that are used are imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from adabench.harness.errors import UsageError, unknown

if TYPE_CHECKING:
    from adabench.backends.interface import Backend
    from adabench.backends.policies.interface import Builder
    from adabench.usecases.interface import UseCase

Kind = Literal["backend", "usecase", "policy", "launcher"]


class _PluginKind(NamedTuple):
    """Location and required members of the plugins of a kind."""

    title: str
    packages: tuple[str, ...]  # package of the built-in plugins
    entry_points: str  # entry point group of other packages
    attribute: str  # name of the class in its module
    members: tuple[str, ...]  # required members of the class


_KINDS: dict[Kind, _PluginKind] = {
    "backend": _PluginKind(
        "backend",
        ("adabench.backends.strategies", "adabench.backends.external"),
        "adabench.backends",
        "BACKEND",
        ("name", "Options", "distributed", "open"),
    ),
    "usecase": _PluginKind(
        "use case",
        ("adabench.usecases",),
        "adabench.usecases",
        "USECASE",
        (
            *("name", "Params", "metric", "maximize", "tolerance", "fingerprint", "model", "optimizer"),
            *("loaders", "loss", "evaluate", "keys", "samples"),
        ),
    ),
    "policy": _PluginKind(
        "builder of policies",
        ("adabench.backends.policies",),
        "adabench.backends.policies",
        "BUILDER",
        ("name", "Options", "build"),
    ),
    "launcher": _PluginKind(
        "launcher",
        ("adabench.harness.launch",),
        "adabench.harness.launch",
        "LAUNCHER",
        ("name", "prepare", "obstacle", "begin", "close"),
    ),
}


def names(kind: Kind) -> dict[str, str]:
    """Return name -> origin for every plugin that can be found."""
    return {name: origin for name, (origin, _) in sorted(_candidates(kind).items())}


def modules(kind: Kind, wanted: Iterable[str]) -> list[str]:
    """The modules of those plugins among the `wanted` ones that are built in."""
    candidates = _candidates(kind)
    found = {where for name in wanted if isinstance(where := candidates[name][1], str)}
    return sorted(found)


def load_backend(name: str) -> type[Backend]:
    """The backend's class; `UsageError` if it does not exist, cannot be imported, or lacks a member."""
    return cast("type[Backend]", _load("backend", name))


def load_usecase(name: str) -> type[UseCase]:
    """The use case's class; errors as in `load_backend`."""
    return cast("type[UseCase]", _load("usecase", name))


def load_builder(name: str) -> type[Builder]:
    """The class of a builder of policies; errors as in `load_backend`."""
    return cast("type[Builder]", _load("policy", name))


def load_launcher(name: str) -> type[Any]:
    """The class of a `Launcher`, a type of a layer above this one; errors as in `load_backend`."""
    return _load("launcher", name)


def unavailable(name: str) -> str | None:
    """Return the reason why a backend cannot work here; None if no obstacle is known before a run."""
    from adabench.backends.interface import Unavailable

    try:
        load_backend(name)()
    except Unavailable as error:
        return " ".join(str(error).split())
    return None


def source_files(plugin: type) -> list[Path]:
    """The files that decide a plugin's behaviour: its package's, or a built-in backend's own and helpers."""
    package = plugin.__module__.rpartition(".")[0] or plugin.__module__
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    if any(package in kind.packages for kind in _KINDS.values()):
        own = plugin.__module__.rpartition(".")[2]
        return sorted(
            file for folder in folders for file in [folder / f"{own}.py", *folder.glob("_[!_]*.py")]
        )
    if folders:
        return sorted(file for folder in folders for file in folder.rglob("*.py"))
    return [Path(spec.origin)] if spec is not None and spec.origin else []


def _candidates(kind: Kind) -> dict[str, tuple[str, str | EntryPoint]]:
    found: dict[str, tuple[str, str | EntryPoint]] = {}
    for package in _KINDS[kind].packages:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            # Use cases are folders, all other plugins are files. Names with an underscore are helpers.
            if module.ispkg != (kind == "usecase") or module.name.startswith("_"):
                continue
            path = f"{package}.{module.name}"
            if _defines(path, _KINDS[kind].attribute):
                found[module.name.replace("_", "-")] = ("built in", path)
    for entry in _installed(_KINDS[kind].entry_points, tuple(sys.path)):
        if entry.name in found:
            raise UsageError(
                f"{kind} {entry.name!r} is defined twice: by {found[entry.name][0]} and by {entry.value}"
            )
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", entry.name):
            raise UsageError(
                f"{kind} {entry.name!r} of {entry.value} cannot be used: a name has letters, digits, hyphens"
            )
        found[entry.name] = (entry.dist.name if entry.dist is not None else entry.value, entry)
    return found


@functools.cache
def _installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points of the packages in `path`. Reading the metadata of all packages takes milliseconds."""
    return tuple(entry_points(group=group))


def _defines(module: str, attribute: str) -> bool:
    """Whether a module's source assigns `attribute` at top level, found without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return False
    source = Path(spec.origin).read_text(encoding="utf-8")
    return re.search(rf"^{attribute}\b\s*[:=]|import\s.*\b{attribute}\b", source, re.MULTILINE) is not None


def _load(kind: Kind, name: str) -> type[Any]:
    candidates = _candidates(kind)
    if name not in candidates:
        raise unknown(_KINDS[kind].title, name, candidates)
    origin, where = candidates[name]
    try:
        if isinstance(where, str):
            plugin = getattr(importlib.import_module(where), _KINDS[kind].attribute)
        else:
            plugin = where.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UsageError(f"{kind} {name!r} ({origin}) cannot be imported: {error}") from error
    missing = [member for member in _KINDS[kind].members if not hasattr(plugin, member)]
    if missing:
        raise UsageError(f"{kind} {name!r} ({origin}) lacks {', '.join(missing)} of the {kind} protocol")
    if plugin.name != name:
        raise UsageError(f"{kind} {name!r} ({origin}) names itself {plugin.name!r}: the two must be equal")
    return cast("type[Any]", plugin)
