"""A session from its first run to its figure, through the command line."""

from pathlib import Path
from typing import Any

import pytest

from adabench.results.record import Run
from adabench.results.store import SessionStore, list_sessions

STUDY = """
usecases = ["fake-line"]
backends = ["single", "fake-gloo"]
nodes = 2
network = "lan"
repeats = 2
[targets.fake-line]
rmse = 0.2
"""


@pytest.fixture
def study(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(STUDY)
    return "small.toml"


def only_session(folder: Path) -> SessionStore:
    (store,) = list_sessions(folder / "adabench-results")
    return store


def key(run: Run) -> tuple[str, int, int]:
    return (run.backend, run.block, run.attempt)


def test_a_study_is_run_recorded_continued_shown_and_drawn(
    adabench: Any, tmp_path: Path, study: str, marked: Any
) -> None:
    first = adabench("run", study)
    assert first.returncode == 0, first.stderr + first.stdout
    store = only_session(tmp_path)
    session, runs = store.session(), store.runs()
    assert [(run.cell, run.phase, run.block) for run in runs] == [planned.key for planned in session.plan]
    assert [run.phase for run in runs] == ["warmup"] * 2 + ["measured"] * 4
    gloo = [run for run in runs if run.backend == "fake-gloo" and run.phase == "measured"]
    single = [run for run in runs if run.backend == "single" and run.phase == "measured"]
    for run in gloo:
        assert (run.nodes, run.workers, run.network, run.status) == (2, 1, "lan", "ok")
        assert run.counters["bytes_sent"] == 30  # 10 of rank 0 and 20 of rank 1
        assert run.counters["network_is_lan"] == 2
        assert run.samples == 2 * 2 * 8 * 16  # epochs, ranks, batches, batch
    for run in [*gloo, *single]:
        assert run.data == "sha256:fake"
        assert run.environment == session.environment_id
        assert len(run.epoch_seconds) == len(run.history) == 2
        assert run.seconds.train == pytest.approx(sum(run.epoch_seconds))
        parts = (run.seconds.setup, run.seconds.train, run.seconds.eval, run.seconds.teardown)
        assert sum(part for part in parts if part is not None) == pytest.approx(run.seconds.total, abs=1e-3)
        best = min(run.history, key=lambda entry: entry["valid_rmse"])
        assert run.metrics == {"rmse": best["rmse"]}
        assert run.best_epoch == best["epoch"]
        reached = [entry["valid_rmse"] <= 0.2 for entry in run.history]
        assert run.target_met is any(reached)
        assert (run.status == "ok") is any(reached)
        assert run.cpu_seconds
        assert run.train_cpu_seconds
        assert run.train_cpu_seconds < run.cpu_seconds
        assert run.peak_rss_mib
    assert all(run.nodes == 1 for run in single)
    # Each block has its own seed, the same for every backend.
    assert {(run.block, run.seed) for run in runs} == {(-1, 1), (0, 1), (1, 2)}
    assert sorted(file.name for file in (store.folder / "figures").iterdir()) == [
        "fake-line.png",
        "fake-line.svg",
    ]
    for named in ("session: ", "figure:  ", "table:   ", "next:    adabench report "):
        assert named in first.stdout

    again = adabench("run", study)
    assert again.returncode == 0
    assert "is complete" in again.stdout
    assert len(only_session(tmp_path).runs()) == 6

    more = adabench("run", study, "-r", "3")
    assert more.returncode == 0
    assert [key(run) for run in store.runs()][:6] == [key(run) for run in runs]
    assert sorted(key(run)[1] for run in store.runs()) == [-1, -1, 0, 0, 1, 1, 2, 2]

    shown = adabench("show", "--runs")
    assert shown.returncode == 0
    assert all(run.run_id in shown.stdout for run in store.runs())
    assert '"epoch_seconds"' in adabench("show", gloo[0].run_id).stdout
    assert session.session in adabench("list", "sessions").stdout
    listed = adabench("list", "backends").stdout
    assert "fake-gloo" in listed
    assert "adabench-fake" in listed
    assert adabench("plot", session.session).stdout.split() == [
        f"adabench-results/{session.session}/figures/fake-line.{suffix}" for suffix in ("png", "svg")
    ]
    assert marked() == []


def test_a_fresh_session_repeats_everything_and_a_target_out_of_reach_is_a_row(
    adabench: Any, tmp_path: Path
) -> None:
    arguments = ("run", "-u", "fake-line[epochs=1]", "-b", "single", "-r", "1", "--target", "rmse=0")
    for options in ((), ("--fresh",)):
        assert adabench(*arguments, *options).returncode == 0
    stores = list_sessions(tmp_path / "adabench-results")
    assert [[run.status for run in store.runs()] for store in stores] == [["not_converged"]] * 2
