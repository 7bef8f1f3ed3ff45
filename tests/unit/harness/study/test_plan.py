import os
from collections import Counter

import pytest
from msgspec.structs import replace

from adabench.harness.errors import UsageError
from adabench.harness.launch.local import Local
from adabench.harness.session.execute import obstacle, remaining
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.study import cell as cell_module
from adabench.harness.study.cell import Cell, usecase_of
from adabench.harness.study.plan import cells_of, order
from adabench.harness.study.study import load_study
from adabench.results.record import PlannedRun, Run, Status
from adabench.usecases.interface import UseCase
from tests.records import ended, make_cell


def cells(count: int, usecase: str = "ctr") -> list[Cell]:
    return [
        make_cell(Cell, usecase=usecase, backend=f"b{number}", params={"epochs": 3})
        for number in range(count)
    ]


def recorded(planned: PlannedRun, status: Status = "ok", attempt: int = 1, signal: str | None = None) -> Run:
    phase = None if status == "ok" else "train"
    return ended(planned, status=status, attempt=attempt, signal=signal, failed_phase=phase)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_each_cell_takes_each_position_once_in_a_square(size: int) -> None:
    plan = order(cells(size), 3 * size, seed=7, warmup=False)
    for square in range(3):
        inside = [run for run in plan if run.block // size == square]
        assert set(Counter((run.cell, run.position) for run in inside).values()) == {1}
        assert len(inside) == size * size


def test_a_study_of_too_many_cells_is_refused_before_they_are_made() -> None:
    values = ",".join(map(str, range(1, 5001)))
    study = load_study(None, "study", {"usecases": f"mf[dim={values}]"})
    with pytest.raises(UsageError, match="at most 10000 cells, and this one has 20000: split it"):
        cells_of(study)


def test_rows_are_rotations_of_one_order() -> None:
    plan = order(cells(4), 4, seed=3, warmup=False)
    rows = [[run.backend for run in plan if run.block == block] for block in range(4)]
    rotations = [rows[0][shift:] + rows[0][:shift] for shift in range(4)]
    assert sorted(rows) == sorted(rotations)


def test_the_order_depends_on_the_seed_and_on_nothing_else() -> None:
    assert order(cells(4), 8, 1, True) == order(cells(4), 8, 1, True)
    orders = {tuple(run.backend for run in order(cells(4), 1, seed, False)) for seed in range(40)}
    assert len(orders) > 10


def test_a_longer_plan_begins_with_the_shorter_one() -> None:
    short, long = (order([*cells(3), *cells(2, "gcn")], repeats, 1, True) for repeats in (2, 7))
    assert long[: len(short)] == short


def test_a_block_has_one_seed_and_the_warm_up_one_epoch() -> None:
    plan = order([*cells(3), *cells(2, "gcn")], 2, seed=10, warmup=True)
    assert [(run.block, run.usecase, run.phase) for run in plan[:5]] == [(-1, "ctr", "warmup")] * 3 + [
        (-1, "gcn", "warmup")
    ] * 2
    assert {(run.block, run.seed, run.params["epochs"]) for run in plan} == {
        (-1, 10, 1),
        (0, 10, 3),
        (1, 11, 3),
    }


def test_what_has_no_links_is_one_cell_on_every_network() -> None:
    overrides = {
        "usecases": "ctr[rows=2000]",
        "backends": "single,manual",
        "nodes": "1,2",
        "network": ["loopback", "lan"],
    }
    found = cells_of(load_study(None, "s", overrides))
    assert [(cell.backend, cell.nodes, cell.network) for cell in found] == [
        ("single", 1, "loopback"),
        ("manual", 1, "loopback"),
        ("manual", 2, "loopback"),
        ("manual", 2, "lan"),
    ]


def test_a_plan_builds_each_use_case_once_for_equal_data(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def counting(cell: Cell, seed: int) -> UseCase:
        built.append((cell.usecase, cell.params["dim"]))
        return usecase_of(cell, seed)

    monkeypatch.setattr(cell_module, "usecase_of", counting)
    overrides = {"usecases": "ctr[rows=2000,dim=4,8],mf[dim=4]", "backends": "single,manual,prefetch"}
    cells = cells_of(load_study(None, "s", {**overrides, "nodes": "1,2"}))
    assert built == [("ctr", 4), ("ctr", 8), ("mf", 4)]
    assert [cell.policy is None for cell in cells] == [cell.backend == "single" for cell in cells]
    assert len({cell.data for cell in cells}) == 2


def test_a_cell_that_was_skipped_once_is_not_tried_again() -> None:
    plan = order(cells(2), 2, 1, False)
    first = replace(recorded(plan[0], "skipped"), reason="no links")
    again = next(run for run in plan[2:] if run.cell == plan[0].cell)
    assert obstacle(again, [first], Local()) == "no links"


def test_more_pinned_nodes_than_cores_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    overrides = {"usecases": "ctr[rows=2000]", "backends": "manual", "nodes": "1,2", "pinned": True}
    one, two = cells_of(load_study(None, "s", overrides))
    reasons = {run.nodes: obstacle(run, [], Local()) for run in order([one, two], 1, 1, False)}
    assert reasons == {1: None, 2: "2 nodes with a core each need 2 cores: this process may use 1"}


def test_identity_covers_everything_that_defines_a_cell() -> None:
    (base,) = cells(1)
    changed = [
        replace(base, usecase="gcn"),
        replace(base, backend="x"),
        replace(base, params={"epochs": 4}),
        replace(base, options={"lookahead": 3}),
        replace(base, nodes=3),
        replace(base, workers=2),
        replace(base, network="lan"),
        replace(base, pinned=True),
        replace(base, interleaved=True),
        replace(base, interleaved=True, turn_steps=3),
        replace(base, node_percent=75),
        replace(base, last_node_percent=25),
        replace(base, data="sha256:1"),
        replace(base, source="abc"),
    ]
    assert len({cell.id for cell in [base, *changed]}) == 1 + len(changed)
    # The location of data is not part of their identity.
    assert replace(base, data_path="/elsewhere").id == base.id


def test_only_what_is_not_recorded_is_left() -> None:
    plan = order(cells(2), 2, 1, False)
    done = [recorded(plan[0]), recorded(plan[1], "failed"), recorded(plan[2], "interrupted")]
    assert remaining(plan, done) == [(plan[2], 2), (plan[3], 1)]
    assert remaining(plan, [*done, recorded(plan[2], attempt=2)]) == [(plan[3], 1)]


def test_runs_that_take_turns_are_repeated_together() -> None:
    plan = order([replace(cell, interleaved=True) for cell in cells(2)], 2, 1, False)
    done = [recorded(plan[0]), recorded(plan[1], "interrupted")]
    assert remaining(plan, done) == [(plan[0], 2), (plan[1], 2), (plan[2], 1), (plan[3], 1)]
    done += [recorded(plan[0], attempt=2), recorded(plan[1], attempt=2), recorded(plan[2])]
    assert remaining(plan, done) == [(plan[2], 2), (plan[3], 1)]


def test_only_a_failure_from_outside_is_tried_again() -> None:
    plan = order(cells(2), 1, 1, False)
    done = [recorded(plan[0], "failed", signal="SIGKILL"), recorded(plan[1], "failed")]
    assert remaining(plan, done, ResumeOptions(retry_infra=1)) == [(plan[0], 2)]
    assert (
        remaining(plan, [*done, recorded(plan[0], "failed", 2, "SIGKILL")], ResumeOptions(retry_infra=1))
        == []
    )
