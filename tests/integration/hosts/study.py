"""A small study for several launchers, and what their records have in common."""

from typing import Any

from adabench.results.record import Run

GIVEN_UP = 240.0
"""Seconds after which a test counts as hung."""

STUDY = """
usecases = ["fake-line", "ctr[rows=4000,epochs=1]"]
backends = ["fake-gloo", "manual"]
exclude = [{usecase = "ctr", backend = "fake-gloo"}, {usecase = "fake-line", backend = "manual"}]
nodes = 2
repeats = 1
"""
HANG = ("-u", "fake-line[mishap=hang]", "-b", "fake-gloo", "--nodes", "2", "-r", "1")


def comparable(run: Run) -> dict[str, Any]:
    """The part of a record that does not depend on the hosts of the run."""
    same = ("cell", "params", "block", "position", "seed", "phase", "data", "status", "samples", "policy")
    return {name: getattr(run, name) for name in (*same, "best_epoch", "environment")}


def assert_host_lost(run: Run, said: str, address: str, how: str) -> None:
    """The host of node 1 was lost: the run failed by that, and the session has ended with a remedy."""
    lost = f"rank 1 ({address}) was lost: "
    assert lost in said
    assert "the same command continues when all hosts are there" in said.replace("\n", " ")
    assert (run.status, run.failed_rank, run.failed_phase) == ("failed", 1, "train")
    assert str(run.reason).startswith(f"the host of node 1, rank 1 ({address}), was lost: ")
    if how == "cut off":
        assert str(run.reason).endswith("no message arrived from it for 5 s")
