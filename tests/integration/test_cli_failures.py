"""Runs that end badly: recorded with their first cause, and nothing left behind."""

import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from adabench.results.store import SessionStore, list_sessions
from tests.conftest import Python

from .conftest import logs_hold

GIVEN_UP = 240.0
"""Seconds after which a test counts as hung; the time that a run needs depends on the machine."""


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A control group of 64 MiB, version 1 or 2; skips where this user cannot make one."""
    root, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not root.is_dir():
        root, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = root / f"adabench-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error.strerror})")
    try:
        (group / limit).write_text(f"{64 << 20}")
        yield group
    except OSError as error:
        pytest.skip(f"control groups here do not limit memory ({error.strerror})")
    finally:
        group.rmdir()


def session(folder: Path) -> SessionStore:
    (store,) = list_sessions(folder / "adabench-results")
    return store


def test_every_way_to_fail_is_a_row_with_its_first_cause(adabench: Any, tmp_path: Path, marked: Any) -> None:
    faults = "raise,orphan,nan,memory,address-space"
    done = adabench(*("run", "-u", f"fake-line[mishap={faults}]", "-b", "fake-gloo", "-r", "1"))
    assert marked() == []
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    store = session(tmp_path)
    runs = {run.params["mishap"]: run for run in store.runs()}
    outcomes = {fault: (run.status, run.failed_phase, run.failed_rank) for fault, run in runs.items()}
    assert outcomes == {
        "raise": ("failed", "train", 1),
        "orphan": ("failed", "train", 1),
        "nan": ("failed", "eval", 0),
        "memory": ("oom", "train", 1),
        "address-space": ("oom", "train", 1),
    }
    assert runs["raise"].reason == "rank 1: RuntimeError: the second step went wrong"
    assert runs["orphan"].reason == "rank 1 was killed by SIGKILL"
    assert (runs["orphan"].signal, runs["orphan"].exit_code) == ("SIGKILL", -9)
    assert "validation rmse is nan after epoch 1" in str(runs["nan"].reason)
    for run in runs.values():
        log = (store.logs / f"{run.run_id}.err").read_text()
        assert str(run.reason) in log
        assert run.signal is not None or "Traceback" in log
        assert run.metrics == {}


def test_a_rank_that_the_kernel_kills_for_its_memory_is_out_of_memory(
    adabench: Any, tmp_path: Path, memory_cgroup: Path
) -> None:
    fault = f"fake-line[mishap=cgroup,cgroup={memory_cgroup}]"
    assert adabench("run", "-u", fault, "-b", "fake-gloo", "-r", "1", "--retry-infra", "1").returncode == 1
    (run,) = session(tmp_path).runs()
    assert (run.status, run.failed_phase, run.failed_rank, run.signal) == ("oom", "train", 1, "SIGKILL")
    assert run.reason == "rank 1 was killed by SIGKILL: the kernel had run out of memory for it"


def test_a_backend_that_cannot_work_here_is_skipped_with_its_reason(adabench: Any, tmp_path: Path) -> None:
    done = adabench(
        *("run", "-u", "fake-line[epochs=1]", "-b", "fake-absent,fake-gloo,single", "-r", "1", "--nodes", "3")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {run.backend: run for run in session(tmp_path).runs()}
    assert runs["single"].status == "ok"
    assert {name: (run.status, run.reason) for name, run in runs.items() if name != "single"} == {
        "fake-absent": ("skipped", "the package no_such_package is not installed"),
        "fake-gloo": ("skipped", "fake-gloo works on at most 2 nodes, not on 3"),
    }
    assert "skipped: the package no_such_package is not installed" in done.stdout
    assert "no runs" in adabench("compare", "--baseline", "single").stdout
    assert adabench("report").returncode == 0


def test_a_timeout_kills_the_process_group(adabench: Any, tmp_path: Path, marked: Any) -> None:
    done = adabench("run", "-u", "fake-line[mishap=hang]", "-b", "single", "-r", "1", "--timeout", "3s")
    assert marked() == []
    assert done.returncode == 1
    (run,) = session(tmp_path).runs()
    assert (run.status, run.reason) == ("timeout", "killed after 3 s")
    assert run.failed_phase in ("launch", "setup", "train")  # how far it comes is up to the machine
    assert run.seconds.total > 3


def test_a_rank_killed_from_outside_fails_the_run_and_leaves_nothing(
    start: Any, tmp_path: Path, marked: Any, wait_until: Any
) -> None:
    """Rank 1 hangs and ignores SIGTERM; rank 0, blocked in a collective with it, is killed."""
    harness = start("run", "-u", "fake-line[mishap=hang]", "-b", "fake-gloo", "-r", "1")
    assert wait_until(lambda: logs_hold(tmp_path, "hanging"), GIVEN_UP)
    ranks = [process for process in map(psutil.Process, marked()) if process.name() == "adabench rank 0"]
    ranks[0].kill()
    assert harness.wait(GIVEN_UP) == 1
    assert marked() == []
    (run,) = session(tmp_path).runs()
    assert (run.status, run.failed_rank) == ("failed", 0)
    assert "rank 0" in str(run.reason)


def test_runs_that_take_turns_do_not_hear_of_one_that_fails(
    adabench: Any, tmp_path: Path, marked: Any
) -> None:
    usecases = "fake-line[note=a],fake-line[mishap=orphan],fake-line[note=b]"
    begun_at = time.monotonic()
    done = adabench("run", "--interleaved", "-u", usecases, "-b", "fake-gloo", "--nodes", "2", "-r", "1")
    elapsed = time.monotonic() - begun_at
    assert done.returncode == 1
    assert marked() == []
    runs = session(tmp_path).runs()
    assert sorted(run.status for run in runs) == ["failed", "ok", "ok"]
    (failed,) = (run for run in runs if run.status == "failed")
    assert (failed.failed_rank, failed.signal) == (1, "SIGKILL")
    well = [run for run in runs if run.status == "ok"]
    assert all(len(run.epoch_seconds) == 2 and run.interleaved for run in well)
    # They were there at the same time, and none counts the others' turns as its own.
    assert sum(run.seconds.total for run in well) < elapsed


def test_ctrl_c_ends_all_runs_that_take_turns(
    start: Any, tmp_path: Path, marked: Any, wait_until: Any
) -> None:
    usecases = "fake-line[note=a],fake-line[mishap=hang]"
    harness = start("run", "--interleaved", "-u", usecases, "-b", "fake-gloo", "--nodes", "2", "-r", "1")
    assert wait_until(lambda: logs_hold(tmp_path, "hanging"), GIVEN_UP)
    harness.send_signal(signal.SIGINT)
    assert wait_until(lambda: marked() in ([], [harness.pid]), GIVEN_UP)
    assert harness.wait(GIVEN_UP) == 130
    assert [run.status for run in session(tmp_path).runs()] == 2 * ["interrupted"]
    assert marked() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_session_is_usable_and_leaves_nothing(
    start: Any, adabench: Any, tmp_path: Path, marked: Any, wait_until: Any, number: signal.Signals
) -> None:
    harness = start("run", "-u", "fake-line[mishap=hang]", "-b", "fake-gloo", "-r", "2")
    assert wait_until(lambda: logs_hold(tmp_path, "hanging"), GIVEN_UP)
    harness.send_signal(number)
    assert wait_until(lambda: marked() in ([], [harness.pid]), GIVEN_UP)
    assert harness.wait(GIVEN_UP) == 130
    (run,) = session(tmp_path).runs()
    assert (run.status, run.reason) == ("interrupted", "stopped by the user")
    assert adabench("show").returncode == 0
    assert marked() == []


def test_a_killed_harness_leaves_no_process_and_resumes(
    start: Any, tmp_path: Path, marked: Any, wait_until: Any
) -> None:
    arguments = ("run", "-u", "fake-line", "-b", "single", "-r", "2")
    harness = start(*arguments)
    assert wait_until(lambda: any("adabench rank" in name for name in names(marked())), GIVEN_UP)
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    # The death of the harness ends its run: no process continues without being recorded.
    assert wait_until(lambda: marked() == [], GIVEN_UP)
    assert start(*arguments).wait(240) == 0
    store = session(tmp_path)
    runs = store.runs()
    assert [(run.cell, run.phase, run.block) for run in runs] == [run.key for run in store.session().plan]
    assert {run.status for run in runs} == {"ok"}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_harness_killed_at_random_moments_neither_repeats_nor_loses_a_run(
    tmp_path: Path, python: Python, seed: int
) -> None:
    """Kills from the first moment of a start up to its eighth run, until the 62 runs are done."""
    done = python("-m", "tests.integration.harness.killed", str(tmp_path), str(seed))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5
    (store,) = list_sessions(tmp_path / "sessions")
    runs = store.runs()
    assert [(run.cell, run.phase, run.block) for run in runs] == [run.key for run in store.session().plan]
    # A kill between recording and announcing leaves a run that is recorded only.
    announced = (tmp_path / "finished").read_text().split()
    assert len(set(announced)) == len(announced)
    assert set(announced) <= {run.run_id for run in runs}
    assert len(runs) - len(announced) <= int(done.stdout)


def names(pids: list[int]) -> list[str]:
    found = []
    for pid in pids:
        try:
            found.append(psutil.Process(pid).name())
        except psutil.NoSuchProcess:
            continue
    return found
