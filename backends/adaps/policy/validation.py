"""Checks of a policy's fields. Errors name the value and the valid values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from adaps import _argument_checks

__all__ = [
    "AccessesMissing",
    "PolicyError",
    "check_fields",
    "check_one_of",
    "check_text",
    "check_whole",
    "checked_shares",
    "is_number",
]

_LARGEST = 2**63 - 1
_TOLERANCE = 1e-6


class PolicyError(ValueError):
    """A policy that is invalid or does not fit. The message names file, rule and field."""


class AccessesMissing(PolicyError):
    """A policy that cannot be built or resolved without the number of accesses to each row."""


def check_fields(owner: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise PolicyError unless all given fields are known."""
    for name in given:
        if name not in known:
            hint = _argument_checks.nearest(name, known)
            raise PolicyError(f"{owner} has no field {name!r}{hint}; it has {', '.join(known)}")


def check_one_of(name: str, value: object, valid: Sequence[str], more: str = "") -> None:
    """Raise PolicyError, which names the valid values and `more`, unless the value is one of them."""
    if value not in valid:
        hint = _argument_checks.nearest(value, valid)
        raise PolicyError(f"{name} {value!r} does not exist{hint}; valid are {', '.join(valid)}{more}")


def check_whole(name: str, value: object, *, least: int, most: int = _LARGEST) -> None:
    """Raise PolicyError unless the value is an integer from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        valid = f"of {least} or more" if most == _LARGEST else f"from {least} to {most}"
        raise PolicyError(f"{name} is {value!r}; it must be an integer {valid}")


def check_text(name: str, value: object) -> None:
    """Raise PolicyError unless the value is a text that is not empty and can be encoded."""
    if not isinstance(value, str) or not value:
        raise PolicyError(f"{name} is {value!r}; it must be a text that is not empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise PolicyError(f"{name} is {value!r}; it must be text that UTF-8 can encode") from None


def checked_shares(name: str, shares: Sequence[Any]) -> tuple[float, ...]:
    """Return numbers of at least 0 that add up to 1; PolicyError, which names `name`, if they do not."""
    for share in shares:
        if not is_number(share) or share < 0:
            raise PolicyError(f"{name} holds {share!r}; each must be a number of 0 or more")
    if not shares or abs(sum(shares) - 1) > _TOLERANCE:
        raise PolicyError(f"{name} add up to {sum(shares):.6g}; they must add up to 1")
    return tuple(float(share) for share in shares)


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
