"""What a conformance test found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One promise of a protocol, whether it is kept, and what was seen."""

    promise: str
    ok: bool
    detail: str = ""
