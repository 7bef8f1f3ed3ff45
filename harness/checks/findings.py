"""Findings of a conformance test."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One promise of a protocol, whether the plugin keeps it, and the observation."""

    promise: str
    ok: bool
    detail: str = ""
