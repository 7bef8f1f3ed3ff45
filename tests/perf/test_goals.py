"""The table of goals: by how much a figure misses its own, and the rows of recorded sessions."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adabench.harness.study.plan import cells_of, planned_runs
from adabench.harness.study.study import built_in_studies, load_study
from adabench.results.record import Git, Link, Run, Seconds
from adabench.results.store import SessionStore
from tests.records import make_run, make_session

from .goals import Cost, Row, goal_table, page, write_record
from .reasons import WHY, reason
from .studies import (
    STUDIES,
    costs,
    newest_complete,
    rows_against_peers,
    rows_behind_links,
    rows_of_intent,
    rows_of_latency,
    rows_of_namespaces,
    rows_of_scaling,
)


def a_run(backend: str, block: int, cpu: float, seconds: float, policy: str = "adaptive", **more: Any) -> Run:
    run = make_run(
        backend,
        block,
        cell=f"{backend}-{policy}-{sorted(more.items())}",
        params={"policy": policy},
        nodes=2,
        seconds=Seconds(total=seconds),
        epoch_seconds=[seconds / 2, seconds / 2],
        samples=1_000_000,
        train_cpu_seconds=cpu,
        metrics={"auc": 0.75},
    )
    return msgspec.structs.replace(run, **more)


def skipped(backend: str, **more: Any) -> Run:
    return a_run(backend, 0, 1, 1, status="skipped", reason=f"{backend} is not here", **more)


OURS = "autoada-automatic"
ENVIRONMENT = {
    "cpu": "a processor",
    "caches": {"L2 unified": "1M", "L3 unified": "32M"},
    "cores": {"usable": 2},
}
HERE = "a processor, 32M of L3 cache, 2 cores"


def test_a_figure_meets_its_goal_or_misses_it_by_a_part_of_the_goal() -> None:
    rows = [
        Row("fast", "× that", 1.1, 1.1),
        Row("slow", "× that", 0.9, 1.2),
        Row("hardly", "× that", 1.0999, 1.1),
        Row("cheap", "× it", 0.4, 0.5, at_most=True),
        Row("quite dear", "× it", 0.75, 0.5, at_most=True),
        Row("beside", "× it", 0.3),
        Row("absent", "", None, 2.0, missing="skipped: no root"),
    ]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in goal_table(rows).splitlines()[2:]]
    assert cells == [
        ["fast", "1.1 × that", "≥ 1.1", "met"],
        ["slow", "0.9 × that", "≥ 1.2", "missed by 25%"],
        ["hardly", "1.1 × that", "≥ 1.1", "missed by less than 1%"],
        ["cheap", "0.4 × it", "≤ 0.5", "met"],
        ["quite dear", "0.75 × it", "≤ 0.5", "missed by 50%"],
        ["beside", "0.3 × it", "–", "for comparison"],
        ["absent", "–", "≥ 2", "skipped: no root"],
    ]


def test_rows_that_differ_in_one_word_and_have_one_goal_are_one_line() -> None:
    rows = [
        Row("pull of 10, local", "× it", 1.0, 1.5),
        Row("pull of 20, local", "× it", 2.0, 1.5),
        Row("pull of 20, remote", "× it", 2.0, 1.5),
        Row("pull of 20, slow", "× it", 2.0, 1.6),
        Row("pull, slow", "× it", 2.0, 1.6),
    ]
    assert [line.split("|")[1].strip() for line in goal_table(rows).splitlines()[2:]] == [
        "pull of 10 / 20, local",
        "pull of 20, remote",
        "pull of 20, slow",
        "pull, slow",
    ]
    assert "| 1, 2 × it " in goal_table(rows)
    assert "| missed by 33%, met |" in goal_table(rows)


def test_every_missed_goal_has_a_reason_or_says_that_there_is_none(tmp_path: Path) -> None:
    rows = [
        Row("pull of 1,000 of 32 floats", "×", 1.0, 1.1),
        Row("pull of 1 from another node", "×", 2.0, 1.5, at_most=True),
        Row("something new", "×", 1.0, 2.0),
        Row("something met", "×", 2.0, 2.0),
    ]
    cost = Cost(
        study="links",
        usecase="ctr",
        backend="rpc",
        cpu_microseconds_per_sample=20.0,
        samples_per_second=50_000.0,
        quality=0.75,
        runs=3,
        round_trip_ms=0.52,
    )
    page_file = write_record(tmp_path / "bench.json", "a machine", rows, [cost])
    text = page_file.read_text()
    assert page_file.name == "BENCH.md"
    # The longer beginning counts.
    for number, verdict, why in (
        (1, "missed by 9%", WHY["pull of"]),
        (2, "missed by 33%", WHY["pull of 1 from another node"]),
        (3, "missed by 50%", "no reason noted"),
    ):
        assert f"| {verdict} ({number})" in text
        assert f"\n{number}. {why}\n" in text
    assert "met 1 of 4 goals: a machine." in text
    recorded = json.loads((tmp_path / "bench.json").read_text())
    assert [row["reason"] for row in recorded["rows"]] == [reason(row.what) for row in rows[:3]] + [None]
    assert [row["verdict"] for row in recorded["rows"]][-1] == "met"
    assert recorded["costs"][0]["backend"] == "rpc"
    assert "1. " not in page("a machine", "today", rows[3:])


def test_ours_is_compared_with_the_best_peer_of_each_block() -> None:
    # The machine is half as fast in the second block; ratios must not see that.
    runs = []
    for block, slow in enumerate((1.0, 2.0, 1.0)):
        runs += [
            a_run("floor", block, 10 * slow, 10 * slow),
            a_run("torchrec", block, 20 * slow, 8 * slow),
            a_run("rpc", block, 24 * slow, 16 * slow),
            a_run(OURS, block, 15 * slow, 4 * slow),
            a_run(OURS, block, 12 * slow, 2 * slow, policy="static"),
        ]
    runs.append(skipped("ddp"))
    assert [(row.figure, row.goal, row.at_most, row.unit) for row in rows_against_peers(runs)] == [
        (1.5, 1.25, True, "× the floor"),
        (0.75, 0.9, True, "× the best of torchrec, rpc"),
        (2.0, 1.3, False, "× the best of torchrec, rpc"),
        (None, None, False, ""),
    ]
    assert rows_against_peers(runs)[-1].verdict == "skipped: ddp is not here"
    assert [
        (cost.backend, cost.cpu_microseconds_per_sample, cost.samples_per_second)
        for cost in costs("peers", runs)
    ] == [
        ("floor (policy=adaptive)", 10.0, 100_000),
        ("autoada-automatic (policy=static)", 12.0, 500_000),
        ("autoada-automatic (policy=adaptive)", 15.0, 250_000),
        ("torchrec (policy=adaptive)", 20.0, 125_000),
        ("rpc (policy=adaptive)", 24.0, 62_500),
    ]


def test_behind_links_the_goal_is_half_as_much_again_as_the_best_peer() -> None:
    link = Link(round_trip_ms=0.5, gbit_per_second=9.0, relay_cpu_seconds=2.0)
    lan: dict[str, Any] = {"network": "namespaces:lan", "link": link}
    runs = [
        a_run(OURS, 0, 10, 4, **lan),
        a_run("torchrec", 0, 10, 5, **lan),
        a_run("rpc", 0, 10, 8, **lan),
        skipped(OURS, network="namespaces:slow"),
        skipped("torchrec", network="namespaces:slow"),
    ]
    fast, slow, left_out = rows_behind_links(runs)
    assert (fast.figure, fast.goal, fast.unit) == (1.25, 1.5, "× the best of torchrec, rpc")
    assert fast.what == "CTR on 2 nodes, links of 0.25 ms and 10 Gbit/s, samples per second"
    assert (slow.figure, slow.verdict) == (None, "skipped: autoada-automatic is not here")
    assert left_out.what.endswith("1 Gbit/s, torchrec")
    (first, *_) = costs("links", runs)
    assert (first.round_trip_ms, first.gbit_per_second, first.relay_microseconds_per_sample) == (
        0.5,
        9.0,
        2.0,
    )


def test_links_between_namespaces_are_compared_with_loopback_and_with_the_relay_alone() -> None:
    seconds = {"loopback": 4.0, "namespaces:loopback": 4.4, "namespaces:lan": 5.0, "namespaces:slow": 5.5}
    runs = [
        a_run(OURS, block, 1, slow * taken, network=network)
        for block, slow in enumerate((1.0, 3.0))
        for network, taken in seconds.items()
    ]
    rows = rows_of_namespaces(runs)
    assert [(row.figure, row.goal) for row in rows] == [
        (0.8, 0.95),
        (0.7273, 0.8),
        (0.9091, None),
        (0.88, None),
        (0.8, None),
    ]
    assert len({(row.what, row.unit) for row in rows}) == len(rows)


def test_latency_and_scaling_are_ratios_to_ourselves() -> None:
    runs = []
    for policy, seconds in (("adaptive", 4.0), ("static", 8.0)):
        runs += [a_run(OURS, 0, 1, 4, policy), a_run(OURS, 0, 1, seconds * 1.25, policy, network="lan")]
    assert [(row.figure, row.goal) for row in rows_of_latency(runs)] == [(0.8, 0.95), (0.4, None)]
    drawn = {"policy": "adaptive", "sampling": "local"}
    runs = [
        a_run("floor", 0, 8, 9, nodes=1, pinned=True),
        a_run(OURS, 0, 10, 10, nodes=1, pinned=True),
        a_run(OURS, 0, 16, 5, pinned=True),
        a_run(OURS, 0, 1, 1),
        a_run(OURS, 0, 1, 9, usecase="gcn", nodes=1, pinned=True),
        skipped(OURS, usecase="gcn", pinned=True),
        a_run(OURS, 0, 1, 4, usecase="kge", nodes=1, pinned=True, params=drawn),
        a_run(OURS, 0, 1, 1.6, usecase="kge", pinned=True, params=drawn),
    ]
    ctr, gcn, *others, ctr_tax, gcn_tax = rows_of_scaling(runs)
    assert others[0].what == "KGE on 2 nodes, a core each, negatives drawn by the server, samples per second"
    kge = [(2.5, 1.85), (None, None)]
    assert [(row.figure, row.goal) for row in others] == [*kge, (None, None), (None, None)]
    assert (ctr.figure, ctr.goal) == (2.0, 1.6)
    assert (ctr_tax.figure, ctr_tax.goal, ctr_tax.verdict) == (0.75, 0.28, "missed by 168%")
    for row in (gcn, gcn_tax):
        assert (row.figure, row.verdict) == (None, "skipped: autoada-automatic is not here")


def test_intent_is_compared_with_the_best_of_what_goes_without_or_has_one_technique() -> None:
    seconds = {"adaptive": 6.0, "static": 8.0, "uniform[technique=relocation]": 5.0}
    runs = [
        a_run(OURS, block, 1, slow * taken, policy, network="lan", nodes=4)
        for block, slow in enumerate((1.0, 3.0))
        for policy, taken in seconds.items()
    ]
    rows = rows_of_intent(runs)
    assert [(row.figure, row.goal) for row in rows if row.figure is not None] == [(1.2, 1)]
    assert [row.what for row in rows if row.figure is not None] == ["adaptive, CTR on 4 nodes, lan, seconds"]
    assert len(rows) == 8


def test_without_sessions_every_row_says_so(tmp_path: Path) -> None:
    rows = [row for rows_of in STUDIES.values() for row in rows_of([])]
    assert len(rows) == 28
    assert {row.verdict for row in rows} == {"not measured: there is no complete session of this processor"}
    assert all(newest_complete(tmp_path, study, HERE) == [] for study in STUDIES)


def test_a_session_counts_once_all_its_runs_are_recorded(tmp_path: Path) -> None:
    overrides = {"usecases": "ctr[rows=2000]", "backends": "single,manual", "nodes": "1", "repeats": "2"}
    study = load_study(None, "peers", overrides)
    plan = planned_runs(cells_of(study), study)

    def store(name: str, count: int, **environment: Any) -> None:
        made = SessionStore(tmp_path / name)
        made.create(
            make_session(
                name,
                created_at="",
                command=[],
                study=msgspec.to_builtins(study),
                plan=plan,
                environment={**ENVIRONMENT, **environment},
                git=Git(commit="c", dirty=False),
            )
        )
        for number, planned in enumerate(plan[:count]):
            fields = {field: getattr(planned, field) for field in planned.__struct_fields__}
            fields["run_id"] = f"run-{number}"
            made.append(msgspec.structs.replace(a_run(planned.backend, 0, 1, 1), **fields, session=name))

    store("older", len(plan))
    store("newer", len(plan) - 1)
    store("elsewhere", len(plan), cpu="another")
    assert {run.session for run in newest_complete(tmp_path, "peers", HERE)} == {"older"}
    assert len(newest_complete(tmp_path, "peers", HERE)) == 4
    assert newest_complete(tmp_path, "links", HERE) == []


@pytest.mark.parametrize("name", STUDIES)
def test_studies_of_the_bench_train_the_same_model(name: str) -> None:
    chosen, expected = (
        next(
            one.values
            for one in load_study(built_in_studies()[study], study, {}).usecases
            if one.name == "ctr"
        )
        for study in (name, "peers")
    )
    assert chosen == expected
