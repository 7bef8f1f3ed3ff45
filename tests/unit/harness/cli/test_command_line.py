"""The interpretation of command-line arguments, and the output of lists."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adabench.harness.cli import commands_results
from adabench.harness.cli.commands_run import _print_session
from adabench.harness.cli.options import study_from
from adabench.harness.plugins.describe import parameter_rows
from adabench.harness.plugins.registry import load_backend, load_builder, load_usecase
from adabench.harness.study.plan import cells_of, planned_runs
from adabench.harness.study.study import quick_study
from adabench.results.store import SessionStore
from tests.records import make_run, make_session


def test_it_tells_its_version(said: Any) -> None:
    assert said("--version") == (0, f"adabench {version('adabench')}\n", "")


def test_options_with_several_values_add_up() -> None:
    backends = ["manual", "prefetch[lookahead=0,10]"]
    networks = ["lan,slow", "0.5ms,2gbit"]
    overrides = {"usecases": ["ctr", "gcn"], "backends": backends, "nodes": ["1", "2"], "network": networks}
    study = study_from(None, None, {**overrides, "workers": []}, None)
    assert [one.name for one in study.usecases] == ["ctr", "gcn"]
    assert [one.name for one in study.backends] == ["manual", "prefetch"]
    assert [(one.nodes, one.workers, one.network) for one in study.settings] == [
        (nodes, 1, network) for nodes in (1, 2) for network in ("lan", "slow", "0.5ms,2gbit")
    ]


def test_a_quick_study_has_one_block_of_one_epoch(said: Any, refused: Any, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('usecases = "ctr[epochs=3,4,rows=1000]"\nbackends = "single"\nrepeats = 9\n')
    code, out, err = said("plan", str(file), "--quick", "--verbose")
    assert (code, err) == (0, "")
    assert out.startswith("study s: 1 cell, 1 block, 1 run\n")
    assert "warm-up" not in out
    quick = quick_study(study_from(file, None, {}, None))
    assert [run.params["epochs"] for run in planned_runs(cells_of(quick), quick)] == [1]
    assert refused("plan", "--quick", "-r", "3").startswith(
        "--quick has one block, so it excludes --repeats 3"
    )


@pytest.mark.parametrize(
    ("command", "doing"),
    [
        (("plan", "-u", "ctr[rows=1000]", "-b", "single"), "loading use cases and their data"),
        (("list", "usecases"), "loading plugins"),
        (("list", "launchers"), "loading plugins"),
        (("list", "studies"), None),
        (("report", "none"), "writing the report"),
        (("plot", "none"), "drawing figures"),
        (("doctor",), "examining this machine"),
    ],
)
def test_commands_that_take_longer_than_a_second_show_their_progress_on_a_terminal(
    said: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], doing: str | None
) -> None:
    err = said(*command)[2]
    assert doing is None or doing not in err
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    err = said(*command)[2]
    assert "\x1b[?25l" not in err if doing is None else doing in err


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("adabench", "run", "--stu"), "--study"),
        (("adabench", "run", "--study", "sca"), "scaling"),
        (("adabench", "run", "-b", "manual,pre"), "manual,prefetch"),
        (("adabench", "list", "stu"), "studies"),
    ],
)
def test_a_shell_completes_names(words: tuple[str, ...], completed: str) -> None:
    asked = {
        **os.environ,
        "_ADABENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": f"{len(words) - 1}",
    }
    code = "import sys; sys.argv = ['adabench']; import adabench.harness.cli.main as cli; cli.main()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=asked, capture_output=True, text=True, timeout=240)
    assert completed in done.stdout.split(), done.stderr


def test_a_list_tells_parameters_with_type_default_and_meaning() -> None:
    rows = {row[0]: row[1:] for row in parameter_rows(load_backend("prefetch").Options)}
    assert rows["lookahead"] == ["int", "20", "Number of batches for which intent is signalled in advance"]
    assert rows["timing"][:2] == ["on|off", "on"]
    assert rows["policy"][:2] == ["text", "adaptive"]
    technique = {row[0]: row[1:] for row in parameter_rows(load_builder("uniform").Options)}["technique"]
    assert technique[:2] == ["choice", "adaptive"]
    assert technique[2].endswith("(adaptive, relocation, replication, static, full_replication)")
    for name in ("ctr", "gcn"):
        params = load_usecase(name).Params
        rows = {row[0]: row[1:] for row in parameter_rows(params)}
        assert list(rows) == list(params.__struct_fields__)
        per_step = {"ctr": "samples", "gcn": "training nodes"}[name]
        assert rows["batch"] == ["int", "128", f"Number of {per_step} per step and worker"]
        assert all(all(row) for row in rows.values()), rows
    assert parameter_rows(load_backend("single").Options) == []


def test_no_description_of_a_command_is_cut_in_80_columns(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = said("--help")
    assert code == 0
    commands = out.partition("Commands:")[2]
    assert "Show the cells that `run` would train, and the expected time." in commands
    assert "..." not in commands


def test_lists_fit_the_terminal_and_studies_are_not_cut(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    monkeypatch.setattr(commands_results, "terminal_width", lambda: 80)
    for what in ("backends", "usecases", "policies", "studies"):
        for more in ((), ("--verbose",)):
            code, out, _ = said("list", what, *more)
            assert code == 0
            assert max(map(len, out.splitlines())) <= 80
    assert "so all sockets are slowed down alike, whoever opened them; this needs root." in " ".join(
        out.split()
    )


def test_a_list_is_short_and_shows_the_parameters_of_a_name(
    monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    monkeypatch.setattr(commands_results, "terminal_width", lambda: 80)
    short, one, whole = (said("list", "backends", *more)[1] for more in ((), ("manual",), ("--verbose",)))
    assert len(short.splitlines()) < 40
    assert "lookahead" not in short
    assert "adabench list backends NAME" in short
    assert one.startswith("manual  Hand-written intent")
    assert "\n  lookahead  int  " in one
    assert "prefetch" not in one
    assert whole.count("\n  lookahead  int  ") == 4
    code, _, err = said("list", "backends", "manuel")
    assert (code, "unknown name in the list of backends 'manuel': did you mean 'manual'?" in err) == (2, True)


def test_a_list_names_what_cannot_be_read(tmp_path: Path, said: Any) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "session.json").write_text('{"schema": 2, "ses')
    code, out, err = said("list", "sessions", "--results", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.startswith("torn  cannot be read: ")


def test_table_that_cannot_be_written_does_not_hide_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SessionStore(tmp_path / "s")
    store.create(make_session("s"))
    store.append(make_run("prefetch", 0))
    (store.folder / "table.md").mkdir()
    _print_session(store, Console())
    said = capsys.readouterr()
    assert "table.md cannot be written (Is a directory)" in said.err
    assert "next:    adabench report" in said.out


@pytest.mark.parametrize(
    "command", ["simulate", "search", "accesses", "policy build static", "policy show static"]
)
@pytest.mark.parametrize("seed", ["-1", "99999999999999999999999"])
def test_seed_outside_the_range_is_refused_by_every_command(said: Any, command: str, seed: str) -> None:
    code, _, err = said(*command.split(), "-u", "ctr", "--seed", seed)
    assert code == 2
    assert "Invalid value for '--seed'" in err


def test_history_refuses_names_that_no_record_has(refused: Any, tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s")
    store.create(make_session("s"))
    store.append(make_run("prefetch", 0))
    history = ("history", "--results", str(tmp_path))
    assert refused(*history, "-u", "ctrr") == "unknown use case 'ctrr': did you mean 'ctr'?"
    assert refused(*history, "-b", "prefetchh") == "unknown backend 'prefetchh': did you mean 'prefetch'?"
    for text in ("prefetchh", "prefetchh[lookahead=20]"):
        sentence = "unknown baseline 'prefetchh': did you mean 'prefetch'?"
        assert refused(*history, "--baseline", text) == sentence
