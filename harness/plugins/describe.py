"""Descriptions of plugins and of their parameters."""

import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from adabench.analysis.load import shown_value
from adabench.analysis.tables import shortened
from adabench.harness.errors import UsageError
from adabench.harness.plugins.registry import (
    Kind,
    load_backend,
    load_builder,
    load_launcher,
    load_usecase,
    names,
)

_LOAD = {"backend": load_backend, "usecase": load_usecase, "policy": load_builder, "launcher": load_launcher}

# An entry in a section of a NumPy docstring: names, an optional type, and indented lines.
_ENTRY = re.compile(r"^(\w[\w, ]*?)(?: :[^\n]*)?\n((?:    [^\n]*\n?)+)", re.MULTILINE)


def plugin_summaries(kind: Kind) -> dict[str, str]:
    """Return the first sentence about each plugin by its name, with the origin of other packages' plugins.

    The sentence about a plugin that cannot be used is the error.
    """
    summaries = {}
    for name, origin in names(kind).items():
        try:
            plugin: Any = _LOAD[kind](name)
            text = _sentence(plugin.__doc__ or sys.modules[plugin.__module__].__doc__ or "")
        except UsageError as error:
            text = str(error)
        summaries[name] = text if origin == "built in" else f"({origin}) {text}"
    return summaries


def describe_plugin(kind: Kind, name: str, width: int | None = None) -> Iterator[str]:
    """Yield a line for each parameter of a plugin, with `width` characters per line."""
    try:
        plugin: Any = _LOAD[kind](name)
    except UsageError:
        return
    if kind == "launcher":  # Plugins of other kinds have parameters.
        return
    rows = parameter_rows(plugin.Params if kind == "usecase" else plugin.Options)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(["", *map(str.ljust, row[:3], widths), row[3]])
        yield from _fitting(line, sum(widths[:3]) + 8, width)


def parameter_rows(params: type[msgspec.Struct]) -> list[list[str]]:
    """Name, type, default and meaning of each parameter of a plugin."""
    meanings = _meanings(params)
    rows = []
    for field in msgspec.structs.fields(params):
        kind, choices = field.type, ""
        if typing.get_origin(kind) is typing.Literal:
            choices = f" ({', '.join(map(str, typing.get_args(kind)))})"
        meaning = meanings.get(field.name, "") + choices
        rows.append([field.name, _type_name(kind), _default(field), meaning.strip()])
    return rows


def _fitting(line: str, indent: int, width: int | None) -> list[str]:
    return [line] if width is None else textwrap.wrap(line, width, subsequent_indent=" " * indent)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return "none" if field.default is None else shortened(shown_value(field.default), 20)
    if field.default_factory is not msgspec.NODEFAULT:
        return shortened(shown_value(field.default_factory()), 20)
    return "-"


def _type_name(kind: Any) -> str:
    """A type as the command line writes it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is bool:
        return "on|off"
    if kind is str:
        return "text"
    if origin is typing.Literal:
        return "choice"
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if one is type(None) else _type_name(one) for one in arguments)
    if origin in (tuple, list):
        return f"{_type_name(arguments[0])}x…"
    return getattr(kind, "__name__", str(kind))


def _meanings(params: type) -> dict[str, str]:
    """Parameter -> the first sentence of its entry under ``Attributes`` of the most derived class."""
    found: dict[str, str] = {}
    for one in reversed(params.__mro__):
        section = inspect.cleandoc(one.__doc__ or "").partition("Attributes\n----------\n")[2]
        for entry in _ENTRY.finditer(section):
            meaning = _sentence(entry[2])
            for name in entry[1].split(","):
                found[name.strip()] = meaning
    return found


def _sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    joined = " ".join(text.split())
    return re.split(r"(?<=[.;])\s", joined)[0].rstrip(".;")
