"""Checks of arguments. Errors name the value and describe valid values."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "byte_count",
    "byte_text",
    "count",
    "int64_array",
    "known_options",
    "nearest",
    "number",
    "one_of",
    "positive",
    "seconds",
    "whole",
]


def count(name: str, value: SupportsIndex, *, most: int | None = None) -> int:
    """Return `value` as a positive int of at most `most`. Any integer type is accepted, except bool."""
    number_of = _integer(name, value, 1, "a positive integer")
    if most is not None and number_of > most:
        raise ValueError(f"{name} is {value!r}; it must be at most {most}")
    return number_of


def whole(name: str, value: SupportsIndex, things: str) -> int:
    """Return `value` as an int of at least 0; `things` names the unit in errors."""
    return _integer(name, value, 0, f"0 or more {things}")


def _integer(name: str, value: SupportsIndex, least: int, needed: str) -> int:
    try:
        number_of = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be {needed}") from None
    if isinstance(value, bool) or number_of < least:
        raise ValueError(f"{name} is {value!r}; it must be {needed}")
    return number_of


def int64_array(name: str, value: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return `value` as an int64 array; TypeError if it holds other numbers than integers."""
    import numpy as np  # imported here, so that importing the package is fast

    array = np.asarray(value)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} is an array of {array.dtype}; it must be of integers")
    return array.astype(np.int64, copy=False)


_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def byte_count(name: str, value: SupportsIndex | str) -> int:
    """Return a positive number of bytes, given as a number or as text with a unit, such as ``"2GiB"``."""
    if not isinstance(value, str):
        return count(name, value, most=2**62)
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value)
    if parts is None or parts[2] not in _BYTES:
        raise ValueError(
            f'{name} is {value!r}; it must be a number of bytes, or text such as "2GiB" with a unit of '
            + ", ".join(_BYTES)
        )
    size = float(parts[1]) if "." in parts[1] else int(parts[1])  # a float is not exact above 2^53
    return count(name, int(size * _BYTES[parts[2]]), most=2**62)


def byte_text(size: int) -> str:
    """Return a positive number of bytes in the largest unit that divides it, for `byte_count`."""
    unit = max((one for one in _BYTES if size % _BYTES[one] == 0), key=_BYTES.__getitem__)
    return f"{size // _BYTES[unit]}{unit}"


_FLOAT32_END = 2.0**128
"""Smallest power of 2 above all numbers of float32, in which the server keeps its settings."""


def number(
    name: str, value: SupportsFloat, *, low: float = -_FLOAT32_END, high: float = _FLOAT32_END
) -> float:
    """Return `value` as a finite float in ``[low, high)``, by default in the range of float32."""
    try:
        converted = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; it must be a number") from None
    if not math.isfinite(converted):
        raise ValueError(f"{name} is {value!r}; it must be finite")
    if converted < low:
        raise ValueError(f"{name} is {value!r}; it must be at least {low:g}")
    if converted >= high:
        raise ValueError(f"{name} is {value!r}; it must be less than {high:g}")
    return converted


def positive(name: str, value: SupportsFloat) -> float:
    """Return `value` as a finite float above 0."""
    converted = number(name, value)
    if converted <= 0:
        raise ValueError(f"{name} is {value!r}; it must be more than 0")
    return converted


def seconds(name: str, value: SupportsFloat) -> float:
    """Return `value` as a positive number of seconds."""
    converted = number(name, value)
    if converted <= 0:
        raise ValueError(f"{name} is {value!r}; it must be more than 0 seconds")
    return converted


def one_of(name: str, value: str, valid: Iterable[str]) -> str:
    """Return `value` if it is one of `valid`."""
    known = list(valid)
    if value not in known:
        hint = nearest(value, known)
        raise ValueError(f"{name} {value!r} does not exist{hint}; valid are {', '.join(known)}")
    return value


def known_options(owner: str, given: Iterable[str], options: Any) -> None:
    """Raise TypeError, which names the nearest valid name, unless a TypedDict has all given names."""
    for name in given:
        if name not in (valid := options.__annotations__):
            raise TypeError(
                f"{owner} has no option {name!r}{nearest(name, valid)}; it has {', '.join(valid)}"
            )


def nearest(value: object, valid: Iterable[str]) -> str:
    """Return a hint at the most similar valid name, or an empty text."""
    similar = difflib.get_close_matches(str(value), list(valid), n=1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""
