"""Runs under each policy that is executed: the record has it whole, and its tables' counters show it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from adabench.results.store import list_sessions
from adaps.policy import DataSharing, Policy

CTR = "ctr[rows=3000,vocabulary=100,dim=4,hidden=8,epochs=1]"
POLICIES = ("static", "lapse", "uniform[technique=replication]")


def test_a_record_has_the_policy_and_counters_by_table(adabench: Any, tmp_path: Path) -> None:
    names = ",".join(POLICIES)
    backends = f"autoada-automatic[policy={names}],manual[policy={names}],single"
    done = adabench("run", "-u", CTR, "-b", backends, "-r", "1", "--nodes", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    (store,) = list_sessions(tmp_path / "adabench-results")
    runs = store.runs()
    assert [run.status for run in runs] == ["ok"] * 7
    for run in runs:
        if run.backend == "single":
            assert (run.policy, run.tables) == (None, {})
            continue
        assert run.policy is not None
        assert Policy.parse(run.policy).name == run.params["policy"].partition("[")[0]
        assert set(run.tables) == {"wide.weight", "deep.weight", "dense.0"}
        for name in ("pulled_local", "pulled_replica", "pulled_remote", "pushed_remote"):
            assert sum(table[name] for table in run.tables.values()) == run.counters[name]
        policy, tables = run.params["policy"], run.tables.values()
        moved = [table["messages_sent_transfer"] for table in tables]
        exchanged = [table["messages_sent_delta"] for table in tables]
        assert (any(moved), any(exchanged)) == {
            "static": (False, False),
            "lapse": (True, False),
            "uniform[technique=replication]": (False, True),
        }[policy], run.backend
        assert policy != "static" or all(table["pulled_remote"] > 0 for table in tables)
    shown = adabench("show")
    assert "autoada-automatic (policy=uniform[technique=replication])" in shown.stdout


def test_a_policy_that_is_not_executed_starts_nothing(adabench: Any, tmp_path: Path) -> None:
    file = tmp_path / "fast.toml"
    replace(Policy.uniform("static"), data=DataSharing("speed")).write(file)
    done = adabench("run", "-u", CTR, "-b", f"manual[policy={file}]")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"error: backend 'manual': {file}: [data]: shares = 'speed' needs the speed"
    )
    assert not (tmp_path / "adabench-results").exists()
