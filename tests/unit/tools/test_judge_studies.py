"""The documentation of the studies `placement` and `robust` agrees with their results."""

from pathlib import Path

import pytest

from adabench.results.record import RecordError, Run, Seconds
from adabench.results.store import SessionStore
from tests.records import make_run
from tests.scripts import load_script

script = load_script("tools/judge_studies.py")


def dealt(placement: str, block: int, local: float, sent: float) -> Run:
    return make_run(
        "manual",
        block,
        run_id=f"{placement}-{block}",
        cell=placement,
        params={"placement": placement},
        seconds=Seconds(train=2.0, total=3.0),
        metric="auc",
        metrics={"auc": 0.7 if placement == "random" else 0.69},
        counters={
            "pulled_local": local,
            "pulled_replica": 0.0,
            "pulled_remote": 100 - local,
            "bytes_sent": sent,
        },
    )


def test_placements_are_compared_with_dealing_at_random() -> None:
    runs = [dealt("random", block, 50, 10) for block in range(6)]
    runs += [dealt("greedy", block, 75, 4) for block in range(6)]
    random, greedy = script.judged_placement(runs)
    assert random == ("ctr", "random", "50.0 %", "", "", "", "0.7000")
    assert greedy[:5] == ("ctr", "greedy", "75.0 %", "1.50 [1.50, 1.50]", "0.40 [0.40, 0.40]")
    assert greedy[6] == "-0.0100 [-0.0100, -0.0100]"
    with pytest.raises(RecordError, match="no run of ctr deals samples at random"):
        script.judged_placement(runs[6:])


def combined(rule: str, fault: str, block: int, auc: float, cpu: float) -> Run:
    return make_run(
        "manual",
        block,
        run_id=f"{rule}-{fault}-{block}",
        cell=f"{rule} {fault}",
        params={"policy": f"robust[aggregation={rule},faulty=2]", "fault": fault},
        metric="auc",
        metrics={"auc": auc},
        cpu_seconds=cpu,
    )


def test_rules_are_compared_with_the_mean_of_right_workers() -> None:
    runs = [combined("mean", "flip", block, 0.45, 10) for block in range(6)]
    runs += [combined("mean", "none", block, 0.77, 10) for block in range(6)]
    runs += [combined("krum", "flip", block, 0.76, 20) for block in range(6)]
    runs += [combined("krum", "none", block, 0.765, 20) for block in range(6)]
    assert script.judged_robust(runs) == [
        ("ctr", "mean", "0.7700", "-0.3200 [-0.3200, -0.3200]", ""),
        ("ctr", "krum", "-0.0050 [-0.0050, -0.0050]", "-0.0100 [-0.0100, -0.0100]", "2.00 [2.00, 2.00]"),
    ]
    with pytest.raises(RecordError, match="no run of ctr has the mean of right workers"):
        script.judged_robust([run for run in runs if run.params["fault"] == "flip"])


def test_a_table_is_written_once_into_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = tmp_path / "session"
    session.mkdir()
    store = SessionStore(session)
    for block in range(6):
        for rule, auc in (("mean", 0.77), ("median", 0.76)):
            for fault in ("none", "flip"):
                store.append(combined(rule, fault, block, auc, 10))
    (tmp_path / "docs" / "guides").mkdir(parents=True)
    page = tmp_path / "docs" / "guides" / "wrong-workers.md"
    name = "study robust"
    marks = f"<!-- {name}: written by tools/judge_studies.py -->\n<!-- end of {name} -->"
    page.write_text(f"# Wrong workers\n\n{marks}\n\nAfter it.\n", encoding="utf-8")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    assert script.main([f"robust={session}"]) == 0
    once = page.read_text(encoding="utf-8")
    assert "in 6 pairs of runs" in once
    assert once.endswith("After it.\n")
    assert script.main([f"robust={session}"]) == 0
    assert page.read_text(encoding="utf-8") == once
    assert script.main(["policies"]) == 2
    assert "'policies' is no study that is judged here" in capsys.readouterr().err


def test_a_session_without_runs_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in script.STUDIES:
        assert script.main([f"{name}={tmp_path}"]) == 2
        said = capsys.readouterr().err
        assert said == f"error: {tmp_path}: it has no successful measured run by which to judge {name!r}\n"
