"""Locations in the user's source, for messages."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

_AUTOADA = f"{Path(__file__).resolve().parents[1]}/"
# torch_geometric replaces `torch.index_select`.
_SKIPPED = (_AUTOADA, "/torch/", "/torch_geometric/hash_tensor.py")


def user_location() -> str:
    """Return ``file:line`` of the innermost frame that belongs neither to torch nor to AutoAda."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_internal(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def is_internal(file: str) -> bool:
    """Return whether a source file is part of AutoAda or PyTorch, and not of the user's code."""
    return any(part in file for part in _SKIPPED)


def source_line(where: str) -> str:
    """Return the source text of ``file:line`` in backquotes; empty if it cannot be read."""
    name, _, line = where.rpartition(":")
    text = linecache.getline(name, int(line)).strip() if line.isdigit() else ""
    return f" `{text}`" if text else ""
