"""A small study that several launchers run, and what is the same whichever did."""

from __future__ import annotations

from typing import Any

from adabench.results.record import Run

__all__ = ["HANG", "STUDY", "comparable"]

STUDY = """
usecases = ["fake-line", "ctr[rows=4000,epochs=1]"]
backends = ["fake-gloo", "manual"]
exclude = [{usecase = "ctr", backend = "fake-gloo"}, {usecase = "fake-line", backend = "manual"}]
nodes = 2
repeats = 1
"""
HANG = ("-u", "fake-line[mishap=hang]", "-b", "fake-gloo", "--nodes", "2", "-r", "1")


def comparable(run: Run) -> dict[str, Any]:
    """What is the same wherever a run was."""
    same = ("cell", "params", "block", "position", "seed", "phase", "data", "status", "samples", "policy")
    return {name: getattr(run, name) for name in (*same, "best_epoch", "environment")}
