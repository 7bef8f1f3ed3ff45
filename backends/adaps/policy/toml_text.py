"""Conversion of values to TOML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

__all__ = ["toml_fields", "toml_numbers", "toml_string", "toml_value"]


@runtime_checkable
class _HasText(Protocol):
    def text(self) -> str: ...


def toml_string(text: str) -> str:
    """Return a basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_numbers(numbers: Iterable[float]) -> str:
    """Return an array of floats of TOML."""
    return toml_value([float(number) for number in numbers])


def toml_value(value: Any) -> str:
    """Return a text, number, sequence, mapping, or object with a method `text`, as TOML on one line."""
    if isinstance(value, _HasText):
        return value.text()
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {toml_value(one)}' for name, one in value.items())} }}"
    return f"[{', '.join(map(toml_value, value))}]"


def toml_fields(header: str, **fields: Any) -> str:
    """Return a header, and a line for each field that is not None."""
    given = [f"{name} = {toml_value(value)}" for name, value in fields.items() if value is not None]
    return "\n".join([header, *given])
