"""Findings of a conformance test."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One promise of a protocol, whether the plugin keeps it, and the observation."""

    promise: str
    ok: bool
    detail: str = ""
