"""Reasons for missed goals, which `reasons.toml` lists."""

import sys
from collections.abc import Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WHY: Mapping[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Maps the beginning of a row's name to the reason; the longest matching beginning counts."""


def reason(what: str) -> str:
    """Return the known reason for which a row misses its goal."""
    fitting = [beginning for beginning in WHY if what.startswith(beginning)]
    return WHY[max(fitting, key=len)] if fitting else "no reason noted"
