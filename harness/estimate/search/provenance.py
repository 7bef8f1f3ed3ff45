"""The best candidate as a policy that says why it is the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adabench.harness.estimate.search.candidates import Candidate
from adaps.policy import Policy

__all__ = ["with_evidence"]


def with_evidence(
    found: Sequence[Candidate],
    objective: str,
    usecase: str,
    measured: Mapping[str, str | float | Sequence[str]] | None = None,
) -> Policy:
    """The first candidate's policy, with what was predicted, simulated and tried.

    Parameters
    ----------
    found : sequence of Candidate
        The best one first.
    objective : str
    usecase : str
        As it is given on the command line.
    measured : mapping, optional
        What trial runs found.
    """
    best = found[0]  # a builder's has its own name
    evidence: dict[str, str | float | Sequence[str]] = {
        "searched_for": f"{objective} of {usecase}",
        "candidate": best.name,
    }
    if best.prediction is not None:
        evidence["predicted_ms_per_step"] = round(1e3 * best.prediction.seconds, 4)
        evidence["predicted_kb_per_step"] = round(1e-3 * best.prediction.bytes, 3)
    if best.simulation is not None:
        evidence["simulated_ms_per_step"] = round(1e3 * best.simulation.seconds_per_step, 4)
        evidence["simulated_kb_per_step"] = round(1e-3 * best.simulation.bytes_per_step, 3)
    evidence |= measured or {}
    evidence["tried"] = [said(one) for one in found]
    return replace(best.policy, evidence=evidence)


def said(one: Candidate) -> str:
    """A candidate and what is known of it, in a line."""
    parts = []
    if one.prediction is not None:
        parts.append(f"predicted {1e3 * one.prediction.seconds:.3f} ms")
    if one.simulation is not None:
        parts.append(f"simulated {1e3 * one.simulation.seconds_per_step:.3f} ms")
    return f"{one.name}: {', '.join(parts) or 'neither predicted nor simulated'}"
