"""``adabench profile``: one run, its budget, its figures."""

from pathlib import Path
from typing import Any

import pytest

from adabench.harness.run.flame_graph import find_py_spy
from adabench.results.store import list_sessions


def test_a_run_is_profiled(adabench: Any, tmp_path: Path) -> None:
    done = adabench("profile", "-u", "ctr[rows=3000,epochs=1]", "-b", "autoada-automatic", "--nodes", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    (store,) = list_sessions(tmp_path / "adabench-results")
    (run,) = store.runs()
    assert [budget.rank for budget in run.budgets] == [0, 1]
    for budget in run.budgets:
        assert sum(budget.parts.values()) == pytest.approx(budget.seconds)
        for part in ("forward", "backward", "pull", "push", "prediction", "de-duplication", "loader"):
            assert budget.parts[part] > 0, part
        assert budget.steps * 128 * 2 == run.samples  # the epoch for flame graphs counts nowhere
    assert run.seconds.train is not None
    assert run.budgets[0].seconds <= run.seconds.train
    assert len(run.epoch_seconds) == len(run.history) == 1
    assert "waiting for rows" in done.stdout
    assert (store.folder / "figures" / "ctr-budget.svg").is_file()
    flames = [store.folder / "profile" / f"flame-rank{rank}.svg" for rank in range(2)]
    if find_py_spy() is None:
        assert "py-spy is not installed: pip install" in done.stdout
    else:
        assert all("<svg" in flame.read_text() for flame in flames), done.stdout
    report = adabench("report")
    assert report.returncode == 0, report.stderr
    assert "Where the time of a step goes" in (store.folder / "report.html").read_text()


def test_several_workers_and_a_backend_without_a_server_are_profiled(adabench: Any, tmp_path: Path) -> None:
    for backend, workers in (("prefetch", "2"), ("single", "1")):
        root = tmp_path / backend
        selection = ("-u", "ctr[rows=3000,epochs=1]", "-b", backend, "--nodes", "1", "--workers", workers)
        done = adabench("profile", *selection, "--results", str(root))
        assert done.returncode == 0, done.stderr + done.stdout
        (store,) = list_sessions(root)
        (budget,) = store.runs()[0].budgets
        assert sum(budget.parts.values()) == pytest.approx(budget.seconds)
        assert budget.parts["backward"] > 0
