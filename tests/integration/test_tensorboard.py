"""Event files of runs are read back and compared with the records of the same runs."""

from pathlib import Path
from typing import Any

import pytest

from adabench.results.store import list_sessions
from tests.events import scalars


def test_events_end_with_what_is_recorded(adabench: Any, tmp_path: Path) -> None:
    given = ("-u", "ctr[rows=4000,epochs=2]", "-b", "manual,single", "--nodes", "2", "-r", "1")
    done = adabench("run", *given, "--tensorboard")
    assert done.returncode == 0, done.stdout + done.stderr
    (store,) = list_sessions(tmp_path / "adabench-results")
    assert (
        f"watch:   tensorboard --logdir {(store.folder / 'tensorboard').relative_to(tmp_path)}" in done.stdout
    )
    runs = store.runs()
    for run in runs:
        folder = store.folder / "tensorboard" / f"{run.usecase}-{run.backend}-{run.run_id}"
        nodes = [scalars(folder / f"node-{rank}") for rank in range(run.nodes)]
        for name, value in {**run.history[-1], **run.metrics}.items():
            if name != "epoch":
                assert value in [pytest.approx(found, rel=1e-6) for _, found in nodes[0][f"quality/{name}"]]
        assert len(nodes[0]["quality/auc"]) == len(run.history)
        for node in nodes:
            assert node["loss"][0][0] == 1  # the first step
            assert 0 < node["loss"][0][1] < 10
        if run.backend == "single":
            assert "bytes_sent" not in nodes[0]
            continue
        for name, counter, unit in (
            ("bytes_sent", "bytes_sent", 1.0),
            ("waiting_seconds", "blocked_micros", 1e-6),
        ):
            last = sum(node[name][-1][1] for node in nodes)
            assert last == pytest.approx(run.counters[counter] * unit, rel=1e-5)
        assert all(0 <= share <= 1 for node in nodes for _, share in node["local_share"])
    assert {run.backend for run in runs} == {"manual", "single"}


def test_runs_that_are_watched_train_as_others_do(adabench: Any, tmp_path: Path) -> None:
    given = ("-u", "fake-line,fake-line[mishap=raise]", "-b", "fake-gloo", "--nodes", "2", "-r", "1")
    assert adabench("run", *given).returncode == 1
    assert adabench("run", *given, "--fresh", "--tensorboard").returncode == 1
    alone, watched = (store.runs() for store in list_sessions(tmp_path / "adabench-results"))
    for one, other in zip(alone, watched, strict=True):
        assert (one.cell, one.status, one.reason) == (other.cell, other.status, other.reason)
        assert (one.metrics, one.history, one.samples) == (other.metrics, other.history, other.samples)
