"""The table of goals: by how much a figure misses its own, and the rows of a session with peers."""

from __future__ import annotations

from adabench.results.record import Run, Seconds

from .goals import Row, table
from .peers import costs, rows_against_peers


def a_run(backend: str, block: int, cpu: float, seconds: float, techniques: str = "adaptive") -> Run:
    return Run(
        run_id=f"{backend}-{block}",
        session="s",
        cell=f"{backend}-{techniques}",
        usecase="ctr",
        backend=backend,
        params={"techniques": techniques},
        nodes=2,
        workers=1,
        network="loopback",
        data=None,
        block=block,
        position=0,
        seed=1,
        phase="measured",
        attempt=1,
        status="ok",
        started_at="",
        seconds=Seconds(total=seconds),
        epoch_seconds=[seconds / 2, seconds / 2],
        samples=1_000_000,
        train_cpu_seconds=cpu,
        metrics={"auc": 0.75},
    )


def test_a_figure_meets_its_goal_or_misses_it_by_a_part_of_the_goal() -> None:
    rows = [
        Row("fast", 1.1, 1.1, "× that"),
        Row("slow", 0.9, 1.2, "× that"),
        Row("cheap", 0.4, 0.5, "× it", at_most=True),
        Row("dear", 0.75, 0.5, "× it", at_most=True),
    ]
    assert table(rows)[2:] == [
        "| fast | 1.1 × that | ≥ 1.1 | met |",
        "| slow | 0.9 × that | ≥ 1.2 | missed by 25% |",
        "| cheap | 0.4 × it | ≤ 0.5 | met |",
        "| dear | 0.75 × it | ≤ 0.5 | missed by 50% |",
    ]


def test_ours_is_compared_with_the_best_peer_of_each_block() -> None:
    # The machine is half as fast in the second block; ratios must not see that.
    runs = []
    for block, slow in enumerate((1.0, 2.0, 1.0)):
        runs += [
            a_run("floor", block, 10 * slow, 10 * slow),
            a_run("torchrec", block, 20 * slow, 8 * slow),
            a_run("rpc", block, 24 * slow, 16 * slow),
            a_run("autoada-automatic", block, 15 * slow, 4 * slow),
            a_run("autoada-automatic", block, 12 * slow, 2 * slow, techniques="static"),
        ]
    assert [(row.figure, row.goal, row.unit) for row in rows_against_peers(runs)] == [
        (1.5, 1.25, "× the floor"),
        (0.75, 1, "× the best of torchrec, rpc"),
        (2.0, 1, "× the best of torchrec, rpc"),
    ]
    assert [
        (cost.backend, cost.cpu_microseconds_a_sample, cost.samples_a_second) for cost in costs(runs)
    ] == [
        ("floor", 10.0, 100_000),
        ("autoada-automatic (techniques=static)", 12.0, 500_000),
        ("autoada-automatic (techniques=adaptive)", 15.0, 250_000),
        ("torchrec", 20.0, 125_000),
        ("rpc", 24.0, 62_500),
    ]
    assert rows_against_peers([]) == []
