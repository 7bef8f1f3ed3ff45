"""Errors that end a command with a message."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Error that names a wrong value and gives a remedy; the command exits with 2."""


class LauncherError(RuntimeError):
    """Error if no run can be started; the command exits with 1."""


def unknown(what: str, name: str, known: Iterable[str], more: str = "") -> UsageError:
    """Return the error for an unknown name, with the nearest existing name. `more` follows the name."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if near:
        return UsageError(f"unknown {what} {name!r}{more}: did you mean {near[0]!r}?")
    return UsageError(f"unknown {what} {name!r}{more}: there is {', '.join(names) if names else 'none'}")
