"""A search that trains candidates: the winner is written together with its measurements."""

from pathlib import Path
from typing import Any

from adabench.results.store import list_sessions
from adaps.policy import Policy

CTR = "ctr[rows=2000,vocabulary=50,dim=4,hidden=8]"


def test_the_best_candidate_meets_the_best_builder(adabench: Any, tmp_path: Path) -> None:
    command = ("search", "-u", CTR, "--nodes", "2", "--step", "2", "--steps", "10", "--builders", "adaptive")
    done = adabench(*command, "--trials", "1", "--blocks", "1", "-o", "best.toml")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "training with 1 of them, against adaptive, on this machine" in done.stdout
    assert "verdict" not in done.stdout
    (store,) = list_sessions(tmp_path / "adabench-results")
    runs = store.runs()
    assert [(run.status, run.params["epochs"]) for run in runs] == [("ok", 1)] * 2
    policy = Policy.read(tmp_path / "best.toml")
    assert policy.evidence["measured_against"] == "adaptive"
    measured = policy.evidence["measured"]
    assert isinstance(measured, tuple)
    (line,) = measured
    assert " of the baseline's time in 1 block" in line
    assert policy.evidence["candidate"] in (line.partition(":")[0], "adaptive")
