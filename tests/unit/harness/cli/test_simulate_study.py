"""``adabench simulate`` with a study: results, tables, figures, and mistakes."""

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from adabench.harness.estimate import simulated_study
from adabench.harness.estimate.simulate import simulated_once
from adabench.harness.estimate.simulated_study import SimulatedCell, with_speed_ups
from adabench.harness.estimate.simulation_report import (
    draw_speed_ups,
    save_figure,
    speed_up_table,
    study_tables,
)
from tests.mistakes import mistakes

CTR = "ctr[batch=64,dim=4,hidden=8,rows=1000,vocabulary=50]"
STUDY = f"""
usecases = ["{CTR}"]
backends = ["autoada-automatic[policy=adaptive,uniform[technique=static]]"]
nodes = [1, 2, 4]
workers = [1, 2]
network = ["lan", "slow"]

[simulation]
steps = 4

[simulation.compute_ms]
"ctr[vocabulary=50,rows=1000,batch=64,dim=4,hidden=8]" = 3.0
"""


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(STUDY)


def cell(policy: str, nodes: int, ms_per_step: float, **changes: Any) -> SimulatedCell:
    given: dict[str, Any] = {
        "usecase": "ctr",
        "backend": "autoada-automatic",
        "policy": policy,
        "nodes": nodes,
        "workers": 1,
        "network": "loopback" if nodes == 1 else "lan",
        "steps": 10,
        "compute_ms": 5.0,
        "ms_per_step": ms_per_step,
        "compute": 0.5,
        "visits": 0.25,
        "rows": 0.125,
        "network_share": 0.125,
        "local": 0.5,
        "bytes_per_step": 1234.5e3,
        "messages_per_step": 100.0,
        "busiest": 1.25,
        "serving": 1.5,
        "cpu_seconds": 0.1,
    }
    return SimulatedCell(**{**given, **changes})


def test_a_study_is_simulated_and_a_second_call_uses_its_results(
    said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("simulate", "s.toml", "--results", "kept", "--json")
    code, out, err = said(*call)
    assert (code, err) == (0, "")
    found = [SimulatedCell(**one) for one in json.loads(out)]
    # One node has no network.
    expected = [
        (workers, nodes, network, policy)
        for workers, (nodes, network), policy in product(
            (1, 2), [(1, "loopback"), *product((2, 4), ("lan", "slow"))], ("adaptive", "static")
        )
    ]
    cells = [(one.workers, one.nodes, one.network, one.policy) for one in found]
    assert sorted(cells) == sorted(expected)
    for one in found:
        assert (one.steps, one.compute_ms) == (4, 3.0)
        assert one.compute + one.visits + one.waiting == pytest.approx(1)
        if one.nodes == 1:
            assert (one.speed_up, one.serving) == (1, None)
        else:
            assert one.speed_up is not None
            assert one.busiest is not None
            assert 1 <= one.busiest <= one.nodes
        if (one.policy, one.network) == ("static", "slow"):
            assert one.waiting > 0.5
    monkeypatch.setattr(simulated_study, "simulated_once", None)
    assert said(*call)[1] == out


def test_an_interrupted_study_is_continued(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ("simulate", "s.toml", "--results", "kept", "--workers", "1", "--network", "lan", "--json")
    done: list[int] = []

    def interrupted(*given: Any) -> Any:
        done.append(given[3].nodes)
        if len(done) == 4:
            raise KeyboardInterrupt
        return simulated_once(*given)

    monkeypatch.setattr(simulated_study, "simulated_once", interrupted)
    assert said(*call)[0] != 0
    code, out, _ = said(*call)
    assert (code, len(json.loads(out))) == (0, 6)
    assert done == [1, 1, 2, 2, 2, 4, 4]


@pytest.mark.parametrize(
    "changes", [("--seed", "2"), ("--steps", "5"), ("--step", "4"), ("--network", "1ms,1gbit")]
)
def test_other_settings_are_simulated_again(said: Any, changes: tuple[str, ...]) -> None:
    call = ("simulate", "s.toml", "--results", "kept", "--workers", "1", "--nodes", "2", "--json")
    before, after = (json.loads(said(*call, *more)[1]) for more in ((), changes))
    assert [one["ms_per_step"] for one in before] != [one["ms_per_step"] for one in after]


def test_tables_of_a_study_fit_80_columns_and_end_with_speed_ups(said: Any) -> None:
    code, out, err = said("simulate", "s.toml", "--results", "kept", "--workers", "1")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [CTR, "1 worker per node, lan, 3 ms to compute"]
    head = ["policy", "nodes", "ms/step", "speed-up", "waiting", "kB/step", "local", "busiest", "serving"]
    assert lines[2].split() == head
    shown = [line.split()[:2] for line in lines[3:9]]
    assert shown == [list(pair) for pair in product(("adaptive", "static"), ("1", "2", "4"))]
    assert lines[-9] == "1 worker per node, lan"
    assert lines[-8].split() == ["speed-up", "2", "4"]
    assert lines[-7].split()[0] == "ctr"


def test_speed_ups_are_relative_to_the_same_cell_on_one_node() -> None:
    found = with_speed_ups(
        [
            cell("adaptive", 1, 5.0),
            cell("static", 1, 6.0),
            cell("adaptive", 64, 8.0),
            cell("static", 64, 96.0),
            cell("static", 64, 8.0, workers=8),
        ]
    )
    assert [one.speed_up for one in found] == [1, 1, 40, 4, None]
    assert speed_up_table(found)[:4] == [
        "1 worker per node, lan",
        "speed-up            64",
        "ctr      adaptive 40.0",
        "ctr      static   4.00",
    ]


def test_the_widest_figures_fit_80_columns() -> None:
    wide = {"busiest": 256.0, "serving": 256.0, "bytes_per_step": 123_456_789.0, "local": 1.0}
    counts = [2**power for power in range(9)]
    usecases = [f"ctr[rows={'9' * 80}]", "ctr"]
    found = [
        cell("full_replication", nodes, 1234.567, usecase=usecase, **wide)
        for usecase in usecases
        for nodes in counts
    ]
    found = with_speed_ups(found)
    assert max(map(len, [*study_tables(found), *speed_up_table(found)])) <= 80


def test_backends_are_named_if_there_are_several() -> None:
    found = [cell("static", 2, 1.0), cell("static", 2, 1.0, backend="manual")]
    names = [line.split(" ")[0] for line in study_tables(found)[3:-1]]
    assert names == ["autoada-automat…", "manual"]


def test_a_figure_has_a_panel_per_use_case_and_a_line_per_policy(tmp_path: Path) -> None:
    found = [
        cell(policy, nodes, 5.0 + nodes, usecase=usecase)
        for usecase in ("ctr[batch=32]", "gcn[dim=4]", "gcn")
        for policy in ("adaptive", "static")
        for nodes in (1, 2, 4)
    ]
    figure = draw_speed_ups(with_speed_ups(found))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "ctr: 1 worker per node, lan",
        "gcn[dim=4]: 1 worker per node, lan",
        "gcn: 1 worker per node, lan",
    ]
    for axes in figure.axes:
        linear, *policies = axes.lines
        assert list(linear.get_xdata()) == list(linear.get_ydata()) == [1, 2, 4]  # type: ignore[arg-type]
        assert [len(line.get_xdata()) for line in policies] == [3, 3]  # type: ignore[arg-type]
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    save_figure(figure, tmp_path / "f.svg")
    assert "prefers-color-scheme: dark" in (tmp_path / "f.svg").read_text()


def test_results_are_written_as_a_table(said: Any) -> None:
    call = ("simulate", "s.toml", "--results", "kept", "--workers", "1", "--nodes", "1,2")
    assert said(*call, "-o", "f.csv")[1].splitlines()[-1] == "f.csv"
    rows = list(csv.DictReader(Path("f.csv").read_text().splitlines()))
    assert [(row["nodes"], row["policy"]) for row in rows[:2]] == [("1", "adaptive"), ("1", "static")]
    assert float(rows[0]["speed_up"]) == 1
    assert json.loads(said(*call, "-o", "f.svg", "--json")[1])[0]["nodes"] == 1  # nothing else is printed


def test_compute_times_are_only_of_the_use_case_that_they_name(
    said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adabench.harness.estimate import measured_steps

    monkeypatch.setattr(measured_steps, "step_seconds", lambda *_, **__: 0.007)
    call = ("simulate", "s.toml", "--results", "kept", "--workers", "1", "--nodes", "2", "--json")
    found = json.loads(said(*call, "-u", CTR.replace("64", "32"))[1])
    assert {one["compute_ms"] for one in found} == {7.0}


@mistakes(
    """
--study scales => unknown study 'scales': did you mean 'scale'?
no.toml => there is no study file no.toml
s.toml --policy static => --policy static: it does not apply to a study; leave it out
s.toml --trace t.json => --trace t.json: it does not apply to a study; leave it out
s.toml --nodes 2,many => option nodes: 'many' is not a whole number
s.toml --steps 0 => --steps 0: give 1 or more
s.toml --results s.toml => s.toml cannot be written (File exists): make it writable
s.toml --results s.toml/x => s.toml/x cannot be written (Not a directory): make it writable
s.toml -b single => backend 'single' does not use the parameter server
s.toml -o f.txt => --out f.txt: give a name that ends in .svg, .png, .pdf, .csv
-u ctr --nodes 2 -o f.csv => --out f.csv: give a name that ends in .svg, .png, .pdf
-u ctr --nodes 2 --json => --json prints the results of a study
--nodes 2 => nothing to simulate: give a use case, such as -u ctr, or --study scale
-u ctr --nodes 2 --workers 1,8 => --workers 1,8: give 1 or more
"""
)
def test_wrong_arguments_are_one_sentence(refused: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert refused("simulate", *arguments, quiet=False).startswith(sentence)


def test_a_policy_longer_than_a_file_name_is_unknown(refused: Any) -> None:
    sentence = refused("simulate", "s.toml", "-b", f"autoada-automatic[policy={'x' * 300}]", quiet=False)
    assert sentence.startswith("unknown policy 'xxx")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("steps = 0", "'steps': 0} does not describe steps"),
        ("stpes = 1", "does not describe steps: Object contains unknown field `stpes`"),
    ],
)
def test_a_wrong_simulation_in_a_study_is_refused(refused: Any, table: str, sentence: str) -> None:
    Path("s.toml").write_text(STUDY.partition("[simulation]")[0] + f"[simulation]\n{table}\n")
    assert sentence in refused("simulate", "s.toml", quiet=False)


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_simulated_study_is_not_run(refused: Any, command: str) -> None:
    err = refused(command, "s.toml", quiet=False)
    assert err.startswith("study s is only simulated: use `adabench simulate`, or leave out its [simulation]")
