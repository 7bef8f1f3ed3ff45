"""What a command ends with, in a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["LauncherError", "UsageError", "unknown"]


class UsageError(ValueError):
    """One sentence that names the wrong value and says what would be right; the command exits with 2."""


class LauncherError(RuntimeError):
    """Why no run can be started; the command exits with 1."""


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if near:
        return UsageError(f"unknown {what} {name!r}: did you mean {near[0]!r}?")
    return UsageError(f"unknown {what} {name!r}: there is {', '.join(names) if names else 'none'}")
