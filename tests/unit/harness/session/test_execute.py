"""How a session grows, continues and stops; the runs themselves are made up."""

import io
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from adabench.analysis.load import last_attempts
from adabench.analysis.statistics import interim_analyses
from adabench.harness import launch
from adabench.harness.errors import UsageError
from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.machine.environment import capture
from adabench.harness.plugins import registry
from adabench.harness.session import execute, open_session
from adabench.harness.session.execute import run_session
from adabench.harness.session.one_run import Attempt, SessionContext
from adabench.harness.session.progress import failure_lines
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.study.plan import cells_of, study_id, with_repeats
from adabench.harness.study.study import Study, load_study
from adabench.results.record import PlannedRun, RecordError, Run, Seconds, Status
from adabench.results.store import SessionStore, list_sessions
from tests.records import ended, make_session

Answer = Callable[[PlannedRun, int], tuple[Status, float]]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[tuple[str, int, int]]]:
    """Replace the execution of runs by an answer of status and training seconds; returns the calls."""

    def install(answer: Answer) -> list[tuple[str, int, int]]:
        calls: list[tuple[str, int, int]] = []

        def execute_run(given: Attempt, context: SessionContext, supervision: Any) -> Run:
            planned, attempt = given.planned, given.number
            calls.append((planned.backend, planned.block, attempt))
            status, seconds = answer(planned, attempt)
            return ended(
                planned,
                attempt=attempt,
                status=status,
                signal="SIGKILL" if status == "failed" else None,
                seconds=Seconds(train=seconds, total=seconds),
            )

        monkeypatch.setattr(execute, "execute_run", execute_run)
        monkeypatch.setattr(ForkServer, "start", lambda self: None)
        monkeypatch.setattr(execute, "noise_complaints", lambda environment: [])
        return calls

    return install


def study(repeats: int = 2) -> Study:
    overrides = {
        "usecases": "ctr[rows=2000]",
        "backends": "single,manual",
        "repeats": str(repeats),
        "nodes": "1",
    }
    return load_study(None, "s", overrides)


def run(root: Path, options: ResumeOptions, repeats: int = 2) -> tuple[list[Run], bool, str]:
    out = io.StringIO()
    store, interrupted = run_session(study(repeats), root, options, Console(file=out, width=200))
    return store.runs(), interrupted, out.getvalue()


def test_a_session_continues_and_a_longer_study_only_adds_blocks(tmp_path: Path, made_up: Any) -> None:
    calls = made_up(lambda planned, attempt: ("ok", 10.0))
    first, _, _ = run(tmp_path, ResumeOptions())
    assert sorted(calls) == [(name, block, 1) for name in ("manual", "single") for block in (-1, 0, 1)]
    assert "is complete" in run(tmp_path, ResumeOptions())[2]
    assert len(calls) == 6
    longer, _, _ = run(tmp_path, ResumeOptions(), repeats=4)
    assert longer[:6] == first
    assert sorted({block for _, block, _ in calls[6:]}) == [2, 3]
    run(tmp_path, ResumeOptions(fresh=True))
    assert len(list_sessions(tmp_path)) == 2


def test_long_name_of_a_study_is_shortened_in_the_name_of_its_session(tmp_path: Path) -> None:
    named = msgspec.structs.replace(study(), name="é" * 120)
    with open_session.open_session(named, cells_of(named), tmp_path, fresh=True, say=print) as (store, _):
        assert store.folder.name.startswith("é" * 100 + "-20")


def test_no_session_is_made_inside_of_a_session(tmp_path: Path, made_up: Any) -> None:
    calls = made_up(lambda planned, attempt: ("ok", 10.0))
    SessionStore(tmp_path).create(make_session())
    with pytest.raises(RecordError, match="is the folder of a session: name the folder that contains"):
        run(tmp_path, ResumeOptions())
    assert not calls


def test_blocks_are_added_until_intervals_are_narrow(tmp_path: Path, made_up: Any) -> None:
    # In the first blocks the ratio varies by 20 %, in later ones hardly. That both cells drift does not matte
    def seconds(planned: PlannedRun) -> float:
        odd = planned.backend == "single" and planned.block < 4 and planned.block % 2 == 1
        return (10 + (2 if odd else 0) + planned.block % 3 / 100) * (1 + planned.block)

    calls = made_up(lambda planned, attempt: ("ok", seconds(planned)))
    runs, _, _ = run(tmp_path, ResumeOptions(until_rel_ci=0.05))
    schedule = interim_analyses(2, 30)
    (store,) = list_sessions(tmp_path)
    assert store.session().analyses == len(schedule)
    blocks = 1 + max(one.block for one in runs)
    assert blocks in schedule[3:-1]
    assert execute.settled(runs, 0.05, len(schedule))
    before = schedule[schedule.index(blocks) - 1]
    assert not execute.settled([one for one in runs if one.block < before], 0.05, len(schedule))
    assert len(calls) == 2 * (blocks + 1)


def test_growth_ends_at_the_most_repeats(tmp_path: Path, made_up: Any) -> None:
    def seconds(planned: PlannedRun) -> float:
        return 10.0 + (planned.block % 5 if planned.backend == "manual" else 0)

    made_up(lambda planned, attempt: ("ok", seconds(planned)))
    runs, _, _ = run(tmp_path, ResumeOptions(until_rel_ci=0.01, max_repeat=8))
    assert max(one.block for one in runs) == 7


def test_what_cannot_come_to_a_verdict_is_said_before_it_runs(tmp_path: Path, made_up: Any) -> None:
    made_up(lambda planned, attempt: ("ok", 10.0))
    needed = "no verdict can be reached with 5 blocks: a verdict on one comparison needs 6 blocks: use -r 6"
    assert needed in run(tmp_path, ResumeOptions(), repeats=5)[2]
    assert "no verdict" not in run(tmp_path, ResumeOptions(), repeats=6)[2]


def test_a_study_without_a_number_of_blocks_gets_as_many_as_verdicts_take(
    tmp_path: Path, made_up: Any
) -> None:
    made_up(lambda planned, attempt: ("ok", 10.0))
    fields = {"usecases": "ctr[rows=2000]", "backends": "single,manual,prefetch", "nodes": "1"}
    open_ended = load_study(None, "s", fields)
    assert open_ended.repeats == 0
    store, _ = run_session(open_ended, tmp_path, ResumeOptions(), Console(file=io.StringIO(), width=200))
    # Two comparisons need seven blocks at least.
    assert store.session().study["repeats"] == 11
    assert {run.block for run in store.runs() if run.phase == "measured"} == set(range(11))
    alone = load_study(None, "t", {**fields, "backends": "single"})
    assert with_repeats(alone, cells_of(alone)).repeats == 6


def test_a_single_cell_has_no_ratio_to_watch(tmp_path: Path) -> None:
    alone = load_study(None, "s", {"usecases": "ctr[rows=2000]", "backends": "single"})
    with pytest.raises(UsageError, match="--until-rel-ci watches ratios to a baseline"):
        run_session(alone, tmp_path, ResumeOptions(until_rel_ci=0.05), Console(file=io.StringIO()))


def test_cells_without_a_baseline_are_refused_before_they_run(tmp_path: Path, made_up: Any) -> None:
    calls = made_up(lambda planned, attempt: ("ok", 10.0))
    given = {"usecases": "ctr[rows=2000]", "backends": "single,prefetch", "repeats": "1", "nodes": "2,3"}
    apart, options = load_study(None, "s", given), ResumeOptions(until_rel_ci=0.5, max_repeat=2)
    sentence = r"baseline \(single was run on 1 node, which baseline 'prefetch' was not\): leave it out"
    with pytest.raises(UsageError, match=sentence):
        run_session(apart, tmp_path, options, Console(file=io.StringIO()))
    assert not calls


def test_a_failure_from_outside_is_tried_again_as_often_as_is_said(tmp_path: Path, made_up: Any) -> None:
    calls = made_up(
        lambda planned, attempt: ("failed" if planned.backend == "manual" and attempt < 3 else "ok", 1.0)
    )
    runs, _, _ = run(tmp_path, ResumeOptions(), repeats=1)
    assert sorted(calls) == [("manual", 0, 1), ("single", 0, 1)]
    runs, _, _ = run(tmp_path, ResumeOptions(retry_infra=2), repeats=1)
    assert calls[2:] == [("manual", 0, 2), ("manual", 0, 3)]
    assert {one.backend: (one.status, one.attempt) for one in last_attempts(runs)} == {
        "manual": ("ok", 3),
        "single": ("ok", 1),
    }


def test_an_interruption_keeps_what_is_done_and_the_next_run_continues(tmp_path: Path, made_up: Any) -> None:
    def interrupted(planned: PlannedRun, attempt: int) -> tuple[Status, float]:
        if planned.block == 0 and attempt == 1:
            signal.raise_signal(signal.SIGINT)
            return "interrupted", 1.0
        return "ok", 1.0

    made_up(interrupted)
    runs, stopped, _ = run(tmp_path, ResumeOptions())
    assert stopped
    assert [one.status for one in runs] == ["ok", "ok", "interrupted"]
    runs, stopped, _ = run(tmp_path, ResumeOptions())
    assert stopped  # the second cell of block 0
    runs, stopped, _ = run(tmp_path, ResumeOptions())
    assert not stopped
    assert {one.status for one in last_attempts(runs)} == {"ok"}
    assert len(last_attempts(runs)) == 6


def test_runs_of_another_environment_are_not_added_to(
    tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(lambda planned, attempt: ("ok", 1.0))
    run(tmp_path, ResumeOptions())
    environment = capture()
    monkeypatch.setattr(open_session, "capture", lambda: {**environment, "compiler": "another"})
    assert "is of another environment (compiler): starting a new one" in run(tmp_path, ResumeOptions())[2]
    assert len(list_sessions(tmp_path)) == 2


def test_if_all_warm_ups_fail_no_measured_run_is_started(tmp_path: Path, made_up: Any) -> None:
    calls = made_up(lambda planned, attempt: ("timeout", 1.0))
    for _ in range(2):  # the same command does not continue further
        runs, stopped, said = run(tmp_path, ResumeOptions())
        assert not stopped
        assert "all warm-ups failed: no measured run is started" in said
    assert sorted(calls) == [("manual", -1, 1), ("single", -1, 1)]
    (line,) = failure_lines(runs)
    assert line == f"timeout: {runs[0].backend} ({runs[0].run_id}) and 1 other: None"


def test_one_warm_up_that_works_is_enough_to_go_on(tmp_path: Path, made_up: Any) -> None:
    calls = made_up(lambda planned, attempt: ("ok" if planned.backend == "single" else "timeout", 1.0))
    run(tmp_path, ResumeOptions())
    assert len(calls) == 6


def test_a_noisy_machine_is_told_with_a_remedy(
    tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(lambda planned, attempt: ("ok", 1.0))
    assert "warning" not in run(tmp_path / "quiet", ResumeOptions())[2]
    monkeypatch.setattr(execute, "noise_complaints", lambda environment: ["the load is 9"])
    said = run(tmp_path / "noisy", ResumeOptions())[2]
    assert "warning: the load is 9\nwith --interleaved the runs of a block take turns" in said
    assert "warning" not in run(tmp_path / "noisy", ResumeOptions())[2]  # it is complete: nothing is measured


def test_a_study_says_which_launcher_starts_its_runs(
    tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told.py").write_text(
        "from adabench.harness.launch.local import Local\n"
        "class Told(Local):\n"
        "    name = 'told'\n"
        "    asked = []\n"
        "    def prepare(self, modules=()):\n"
        "        self.asked.append(list(modules))\n"
        "LAUNCHER = Told\n"
    )
    monkeypatch.setattr(launch, "__path__", [*launch.__path__, str(tmp_path)])
    made_up(lambda planned, attempt: ("ok", 10.0))
    given = {"usecases": "ctr[rows=2000]", "backends": "single", "repeats": "2"}
    usual, told = (load_study(None, "s", {**given, "launcher": name}) for name in ("local", "told"))
    # The same cells, but not a session that another launcher's runs continue.
    cells = cells_of(usual)
    assert [cell.id for cell in cells] == [cell.id for cell in cells_of(told)]
    assert study_id(usual, cells) == study_id(load_study(None, "s", given), cells) != study_id(told, cells)
    store, _ = run_session(told, tmp_path / "sessions", ResumeOptions(), Console(file=io.StringIO()))
    asked = registry.load_launcher("told").asked
    assert len(asked) == len(store.runs()) == 3
    assert "adabench.backends.external.single" in asked[0]
    with pytest.raises(UsageError, match="option launcher: unknown launcher 'tolt': did you mean 'told'"):
        load_study(None, "s", {**given, "launcher": "tolt"})
