"""Trial runs of a search: which policies continue, which are dropped, and the reported interval."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from adabench.harness.errors import LauncherError
from adabench.harness.estimate.search.candidates import Candidate
from adabench.harness.session import policy_trials
from adabench.harness.session.policy_trials import Measured, Trials, halved, measure
from adabench.harness.study.study import Study
from adabench.results.record import Run, Seconds, Status
from adaps.policy import Policy, Rule
from tests.records import make_run


def candidate(name: str) -> Candidate:
    return Candidate(name, Policy(name, [Rule("*")]))


def runs(name: str, factor: float, blocks: int, *, status: Status = "ok", auc: float = 0.7) -> list[Run]:
    """Runs of growing duration by blocks, with a little noise that differs between policies."""
    return [
        make_run(
            "manual",
            block,
            cell=name,
            status=status,
            reason=None if status == "ok" else "it ran out of memory",
            seconds=Seconds(train=(10 + block) * factor * (1 + 0.001 * (block % 3)), total=20.0),
            samples=1000,
            metrics={"auc": auc},
            metric="auc",
            tolerance=0.01,
        )
        for block in range(blocks)
    ]


class Cluster:
    """Simulated runs with known durations, which record the requests."""

    def __init__(self, **factors: float) -> None:
        self.factors = {"baseline": 1.0, **factors}
        self.asked: list[tuple[list[str], int, int]] = []

    def run(self, candidates: Sequence[Candidate], blocks: int, rung: int) -> dict[str, list[Run]]:
        self.asked.append(([one.name for one in candidates], blocks, rung))
        return {one.name: runs(one.name, self.factors[one.name], blocks) for one in candidates}


def searched(cluster: Cluster, blocks: int) -> tuple[str, list[Measured], list[str]]:
    told: list[str] = []
    rivals = [candidate(name) for name in cluster.factors if name != "baseline"]
    best, found = halved(rivals, candidate("baseline"), blocks, cluster.run, told.append)
    return best.name, found, told


def test_the_faster_half_goes_on_with_twice_as_many_blocks() -> None:
    cluster = Cluster(a=1.1, b=0.7, c=0.9, d=1.3)
    best, found, told = searched(cluster, 8)
    assert best == "b"
    assert cluster.asked == [
        (["baseline", "a", "b", "c", "d"], 2, 1),
        (["baseline", "b", "c"], 4, 2),
        (["baseline", "b"], 8, 3),
    ]
    assert [one.name for one in found] == ["a", "b", "c", "d", "b", "c", "b"]
    assert [one.blocks for one in found[-2:]] == [4, 8]
    assert found[-1].ratio == pytest.approx(0.7, rel=1e-3)
    assert found[-1].low <= found[-1].ratio <= found[-1].high < 0.71
    assert math.isnan(found[0].low)  # two blocks have no interval
    assert told[0] == "rung 1: a: 1.100 of the baseline's time in 2 blocks"
    assert told[-1].startswith("rung 3: b: 0.700 [0.7")


def test_the_baseline_stays_if_none_is_faster() -> None:
    cluster = Cluster(a=1.1, b=1.05, c=1.2)
    best, found, _ = searched(cluster, 6)
    assert best == "baseline"
    assert [blocks for _, blocks, _ in cluster.asked] == [3, 6]
    assert found[-1].name == "b"


def test_what_fails_or_trains_otherwise_is_out_however_fast() -> None:
    baseline = runs("baseline", 1.0, 8)
    failed = measure("a", runs("a", 0.1, 8, status="oom"), baseline)
    assert failed.obstacle == "it ran out of memory"
    assert failed.said() == "a: removed, because it ran out of memory"
    worse = measure("a", runs("a", 0.1, 8, auc=0.5), baseline)
    assert worse.obstacle is not None
    assert "auc" in worse.obstacle
    assert measure("a", [], baseline).obstacle == "no block has both runs"
    unlucky = [*runs("baseline", 1.0, 1, status="oom"), *baseline[1:]]
    assert measure("a", runs("a", 0.9, 8), unlucky).obstacle is None

    class Failing(Cluster):
        def run(self, candidates: Sequence[Candidate], blocks: int, rung: int) -> dict[str, list[Run]]:
            found = super().run(candidates, blocks, rung)
            return {**found, "a": runs("a", 0.1, blocks, status="oom")}

    assert searched(Failing(a=0.1), 6)[0] == "baseline"
    assert searched(Failing(a=0.1, b=0.9), 6)[0] == "b"


@pytest.mark.parametrize(("status", "reason"), [("oom", "it ran out of memory"), (None, "it was not run")])
def test_a_baseline_that_did_not_train_is_an_error(status: Any, reason: str) -> None:
    class Failing(Cluster):
        def run(self, candidates: Sequence[Candidate], blocks: int, rung: int) -> dict[str, list[Run]]:
            found = super().run(candidates, blocks, rung)
            return {**found, "baseline": runs("baseline", 1.0, blocks, status=status) if status else []}

    with pytest.raises(LauncherError, match=f"nothing can be compared with baseline: {reason}; name"):
        searched(Failing(a=0.9), 6)


def test_policies_of_one_name_in_a_folder_of_any_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a,b=c]"
    folder.mkdir()
    studies: list[Study] = []

    def run_session(study: Study, root: Path, *given: Any) -> tuple[Any, bool]:
        studies.append(study)
        files = [file for backend in study.backends for file in backend.values["policy"]]
        recorded = [make_run("manual", 0, cell=file, params={"policy": file}) for file in files]
        return SimpleNamespace(runs=lambda: recorded), False

    monkeypatch.setattr(policy_trials, "run_session", run_session)
    trials = Trials("ctr", "autoada-automatic", {"nodes": 2}, folder, tmp_path, Console(file=io.StringIO()))
    several = [Candidate(name, Policy("a/b", [Rule("*")])) for name in ("baseline", "found")]
    assert {name: len(own) for name, own in trials.run(several, 1, 1).items()} == {"baseline": 1, "found": 1}
    ((selected,),) = (study.backends for study in studies)
    assert [Path(file).name for file in selected.values["policy"]] == ["0-a-b.toml", "1-a-b.toml"]
