import io
import os
import platform
import re
from typing import Any

import msgspec
import pytest
from rich.console import Console

from adabench.harness.machine.environment import (
    capture,
    cpu_name,
    environment_id,
    git_state,
    machine_name,
    probe,
    short_differences,
)
from adabench.harness.run.spec import RankState
from adabench.harness.session.execute import settled
from adabench.harness.session.progress import SessionProgress, duration
from adabench.results.record import PlannedRun, Run, Seconds
from tests.records import make_run, plan_of


@pytest.fixture(scope="module")
def environment() -> dict[str, Any]:
    return capture()


def test_an_environment_tells_what_decides_times(environment: dict[str, Any]) -> None:
    assert environment["cpu"]
    assert environment["cores"]["usable"] >= 1
    assert environment["memory_gib"] > 0.5
    assert environment["kernel"].count(" ") >= 1
    assert (
        environment["torch"]["version"] == environment["packages"]["torch"].replace("+cpu", "")
        or "+" in (environment["torch"]["version"])
    )
    assert environment["cpu"] in machine_name(environment)
    assert len(environment["load"]) == 3
    assert any("TORCH_VERSION=" in line for line in environment["torch"]["build"])
    assert not any("CXX_COMPILER=" in line for line in environment["torch"]["build"])


def test_processors_of_one_name_are_told_apart_by_family_and_model() -> None:
    def cpuinfo(model: int) -> str:
        core = f"cpu family\t: 25\nmodel\t\t: {model}\nmodel name\t: AMD  EPYC\nstepping\t: 1\n\n"
        return f"processor\t: 0\n{core}processor\t: 1\n{core}"

    assert cpu_name(cpuinfo(1)) == "AMD EPYC (family 25, model 1)"
    assert cpu_name(cpuinfo(17)) == "AMD EPYC (family 25, model 17)"
    assert cpu_name("model name : one\n") == "one"
    assert cpu_name("") in (platform.processor(), platform.machine())


def test_an_environment_tells_how_memory_is_managed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    usual = capture()
    assert usual["allocator"] == {"variables": {}, "preloaded": []}
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setenv("LD_PRELOAD", "/home/somebody/libjemalloc.so.2 libm.so.6")
    other = capture()
    assert other["allocator"] == {
        "variables": {"MALLOC_TRIM_THRESHOLD_": "131072"},
        "preloaded": ["libjemalloc.so.2", "libm.so.6"],
    }
    assert short_differences(usual, other) == "allocator"


def test_an_environment_is_the_same_until_something_that_matters_changes(environment: dict[str, Any]) -> None:
    busy = {**environment, "load": [9, 9, 9], "memory_available_gib": 0.1}
    assert environment_id(busy) == environment_id(environment)
    other = {**environment, "compiler": "another", "packages": {"torch": "1.0"}}
    assert environment_id(other) != environment_id(environment)
    assert short_differences(environment, other) == "compiler, packages"


def test_a_clone_knows_its_commit() -> None:
    state = git_state()
    assert state is None or len(state.commit) == 40


def test_a_probe_takes_time() -> None:
    load, seconds = probe()
    assert load >= 0
    assert seconds > 0


def recorded(block: int, seconds: float = 0.0) -> Run:
    return make_run(
        "manual",
        block,
        cell="c",
        params={"epochs": 3},
        nodes=2,
        seconds=Seconds(train=seconds, total=seconds),
        metrics={"auc": 0.74123},
    )


def planned(block: int) -> PlannedRun:
    return plan_of([recorded(block)])[0]


def test_progress_without_a_terminal_is_plain_lines_with_what_is_left() -> None:
    out = io.StringIO()
    plan = [planned(block) for block in range(3)]
    with SessionProgress(plan, [recorded(0, 60)], {"c": "manual"}, Console(file=out, width=200)) as progress:
        progress.start(plan[1])
        progress.end(recorded(1, 60))
        progress.lengthen([planned(block) for block in range(4)])
        assert progress.eta() == "about 2 min 00 s left"
    lines = out.getvalue().splitlines()
    assert lines == [
        "block 2/3 ctr manual … about 2 min 00 s left",
        "block 2/3 ctr manual: ok  60.0 s training of 60.0 s  auc 0.7412",
    ]


def test_the_line_of_a_run_fits_80_columns_with_the_whole_name_and_the_main_metric() -> None:
    run = make_run(
        "autoada-automatic",
        12,
        cell="c",
        usecase="gcn",
        seconds=Seconds(train=8.7, total=14.4),
        metrics={"accuracy": 0.86823, "loss": 0.57551},
        metric="accuracy",
    )
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None, soft_wrap=True, _environ={})
    with SessionProgress(plan_of([run] * 13), [], {"c": run.backend}, console) as progress:
        progress.end(run)
    line = "block 13/13 gcn autoada-automatic: ok  8.7 s training of 14.4 s  accuracy 0.8682"
    assert line in out.getvalue()
    assert len(line) == 80


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("runs", [3, 1200])
def test_bar_count_elapsed_and_time_left_are_always_there(width: int, runs: int) -> None:
    out = io.StringIO()
    plan = [planned(block) for block in range(runs)]
    console = Console(file=out, width=width, force_terminal=True, color_system=None, _environ={})
    label = "autoada-automatic (lookahead=20, techniques=full_replication, nodes=2, network=lan)"
    with SessionProgress(plan, [recorded(0, 3700)], {"c": label}, console) as progress:
        progress.start(plan[1])
        for phase, epoch in (("setup", 0), ("train", 2)):
            progress.watch(plan[1], RankState(pid=1, phase=phase, epoch=epoch))
            assert progress._live is not None
            progress._live.refresh()
        progress.end(recorded(1, 3700))
    drawn = [
        line for line in re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", out.getvalue()) if f"/{runs} 0:00" in line
    ]
    assert drawn
    for line in drawn:
        assert len(line.rstrip()) <= width - 2
        assert line.rstrip().endswith(" left")
    assert all("…" in line for line in drawn[1:])  # before, there is no run
    assert any("train 2/3" in line for line in drawn) or width == 60


def test_durations_are_said_in_the_unit_that_suits() -> None:
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3700)] == [
        "0 s",
        "59 s",
        "1 min 01 s",
        "1 h 01 min",
    ]


def test_a_session_is_settled_when_every_interval_is_narrow() -> None:
    runs = [recorded(block, 10) for block in range(6)]
    others = [
        msgspec.structs.replace(recorded(block, 10 + block / 10), backend="other", cell="o")
        for block in range(6)
    ]
    # The interval of six blocks is their range, from 1 to 1.05, around the middle of its pairwise means.
    assert settled([*runs, *others], 0.025, 1)
    assert not settled([*runs, *others], 0.024, 1)
    assert not settled([*runs[:5], *others[:5]], 0.9, 1)
    assert not settled([*runs, *others], 0.9, 2)
