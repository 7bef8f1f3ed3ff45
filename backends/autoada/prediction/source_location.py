"""Locations in the user's source, for messages."""

from __future__ import annotations

import linecache
import sys
from itertools import chain
from pathlib import Path
from traceback import walk_stack, walk_tb

import torch

_INTERNAL = (f"{Path(__file__).parents[1]}/", f"{Path(torch.__file__).parent}/")
_REPLACES_INDEX_SELECT = "/torch_geometric/hash_tensor.py"


def user_location(error: BaseException | None = None) -> str:
    """Return ``file:line`` of the innermost frame that belongs neither to torch nor to AutoAda.

    If there is an `error`, these are the frames that it passed, and then the current frames.
    """
    passed = [] if error is None else [*walk_tb(error.__traceback__)]
    for frame, line in chain(reversed(passed), walk_stack(sys._getframe(1))):
        name = frame.f_code.co_filename
        if not name.startswith(_INTERNAL) and not name.endswith(_REPLACES_INDEX_SELECT):
            return f"{name}:{line}"
    return "?"


def source_line(where: str) -> str:
    """Return the source text of ``file:line`` in backquotes; empty if it cannot be read."""
    name, _, line = where.rpartition(":")
    text = linecache.getline(name, int(line)).strip() if line.isdigit() else ""
    return f" `{text}`" if text else ""
