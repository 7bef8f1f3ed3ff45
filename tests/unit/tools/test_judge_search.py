"""The page about the search agrees with its twelve cells."""

import math
from pathlib import Path
from typing import Any

import pytest

from adabench.backends.policies.resources import Link, Node, Resources
from adabench.harness.session.policy_trials import Measured
from adabench.harness.study.model_parameters import usecase_from
from adabench.results.record import RecordError, Run, Seconds
from adaps.policy import Policy, Rule
from tests.records import COSTS, make_run
from tests.scripts import load_script

judging = load_script("tools/judge_search.py")

FOUND = Policy("found", [Rule("*")], evidence={"candidate": "found, rows alike", "search_seconds": 20.0})
CELL = judging.CELLS[0]
HERE = Resources(
    node=(Node(cores=2, speed=4.0),) * 2, links=Link(latency_ms=0.02, gbit_per_second=8.0), costs=COSTS
)


def runs(seconds: float, blocks: int = 6, **fields: Any) -> list[Run]:
    return [
        make_run(
            "autoada-automatic",
            block,
            seconds=Seconds(train=seconds * (1 + 0.01 * block), total=seconds * (1 + 0.01 * block) + 2),
            **fields,
        )
        for block in range(blocks)
    ]


def judged(
    found: list[Run], *, alike: dict[str, list[str]] | None = None, screened: str = "", **builders: list[Run]
) -> Any:
    alike = alike or {"found": ["found"], **{name: [name] for name in builders}}
    return judging.judged(CELL, FOUND, alike, set(builders) - {screened}, {"found": found, **builders})


def test_the_found_policy_meets_the_best_builder_block_by_block() -> None:
    verdict = judged(runs(9.0), adaptive=runs(10.0), nups=runs(10.5), static=runs(14.0, 2), screened="static")
    assert (verdict.candidate, verdict.best.name, verdict.best.blocks) == ("found, rows alike", "adaptive", 6)
    assert (verdict.best.low, verdict.ratio, verdict.best.high) == pytest.approx((0.9, 0.9, 0.9))
    assert (verdict.is_near, verdict.wins) == (True, True)
    # extrapolated from runs of a few epochs to a whole training, at the median block's pace
    longer = CELL.job / CELL.epochs
    expected = 6 + longer * (1.025 * (10 + 10.5) + 1.005 * 14)
    assert (verdict.search_seconds, verdict.builders_seconds) == (20.0, pytest.approx(expected))
    (row,) = judging.rows_of([verdict])
    assert row[1:6] == ["found, rows alike", "adaptive", "0.900 [0.900, 0.900]", "1 of 3", "20 s"]


def test_a_win_is_one_over_each_builder_that_may_be_the_best() -> None:
    verdict = judged(runs(9.0), adaptive=runs(10.0), nups=runs(9.0))
    assert (verdict.best.name, verdict.is_near, verdict.wins) == ("nups", True, False)


def test_a_single_block_has_no_interval() -> None:
    verdict = judged(runs(11.0, 1), nups=runs(10.0, 1))
    assert math.isnan(verdict.best.high)
    assert (judging.rows_of([verdict])[0][3], verdict.is_near, verdict.wins) == ("1.100", False, False)


def test_what_fails_is_neither_the_best_builder_nor_a_policy_that_is_found() -> None:
    failed = runs(1.0, status="failed", reason="it fell")
    verdict = judged(runs(9.0), adaptive=runs(10.0), static=failed)
    assert verdict.best.name == "adaptive"
    with pytest.raises(RecordError, match="no run with a builder's policy ended well"):
        judged(runs(9.0), static=failed)
    with pytest.raises(RecordError, match="no run with the found policy ended well"):
        judged(failed, adaptive=runs(10.0))
    with pytest.raises(RecordError, match="no block has runs with the found policy and with adaptive"):
        judged(runs(9.0, 1), adaptive=runs(10.0, 2)[1:])
    verdict = judged([*runs(9.0, 5), failed[-1]], adaptive=runs(10.0))
    assert (verdict.obstacle, verdict.is_near, verdict.wins) == ("it fell", False, False)
    assert judging.rows_of([verdict])[0][3].endswith(", but it fell")


def test_a_policy_that_learns_worse_is_not_near_however_fast() -> None:
    def of(seconds: float, auc: float) -> list[Run]:
        return runs(seconds, metric="auc", metrics={"auc": auc}, tolerance=0.005)

    verdict = judged(of(5.0, 0.70), adaptive=of(10.0, 0.75))
    assert (verdict.is_near, verdict.wins) == (False, False)
    assert "auc differs by -0.0500" in judging.rows_of([verdict])[0][3]


def test_a_builder_s_policy_that_is_found_is_not_trained_with_twice() -> None:
    alike = {"found": ["found", "adaptive"], "static": ["static", "balanced"], "nups": ["nups"]}
    near = judged(runs(10.0), static=runs(9.9), nups=runs(12.0, 2), alike=alike, screened="nups")
    assert (near.best.name, near.is_near, near.wins) == ("static, balanced", True, False)
    # One of the builders' policies is the found policy.
    assert near.builders_seconds > CELL.job / CELL.epochs * (10.0 + 9.9 + 12.0)
    alike.pop("static")
    alone = judged(runs(10.0, 2), nups=runs(12.0, 2), alike=alike, screened="nups")
    assert (alone.best, alone.ratio, alone.is_near, alone.wins) == (None, 1.0, True, False)


def test_policies_are_alike_if_they_do_the_same() -> None:
    static = Policy("static", [Rule("*", technique="static")])
    named = Policy("balanced", [Rule("*", technique="static")], evidence={"measured_ratio": 0.9})
    other = Policy("adaptive", [Rule("*")])
    policies = {"a.toml": named, "static": static, "adaptive": other}
    assert judging.distinct(policies) == {"a.toml": ["a.toml", "static"], "adaptive": ["adaptive"]}


def test_builders_that_are_slow_in_every_block_are_not_trained_any_more() -> None:
    times = {
        "adaptive": {0: 10.0, 1: 10.0},
        "static": {0: 10.5, 1: 9.9},
        "nups": {0: 11.5, 1: 10.9},  # once by a tenth, once not
        "lapse": {0: 11.1, 1: 11.1},
    }
    assert judging.left_after_screening(times) == {"adaptive", "static", "nups"}
    # who failed in a block is compared in the others
    assert judging.left_after_screening({"adaptive": {0: 10.0, 1: 9.0}, "nups": {0: 12.0}}) == {"adaptive"}
    assert judging.left_after_screening({"adaptive": {0: 10.0}, "nups": {1: 12.0}}) == {"adaptive", "nups"}


def verdict_of(ratio: float, high: float, search: float, obstacle: str | None = None) -> Any:
    rival = Measured("static", 6, ratio, ratio, high, obstacle)
    return judging.Verdict("c", "found", (rival,), frozenset(), search, 50.0)


def test_the_summary_counts_what_is_wanted() -> None:
    rivals = (Measured("nups", 2, 0.8),)
    same = judging.Verdict("c", "adaptive", rivals, frozenset({"nups"}), 60.0, 50.0)
    verdicts = [
        verdict_of(0.8, 0.9, 40.0),
        verdict_of(0.7, 0.8, 60.0, "auc differs"),
        verdict_of(1.04, 1.06, 60.0),
        verdict_of(1.08, 1.2, 20.0),
        same,
    ]
    said = judging.summary_of(verdicts)
    assert "In 3 of 5 cells (goal: 10 of 12), the found policy took at most 5 % more time" in said
    assert "In the worst cell it took 1.080 times as long" in said
    assert "In 1 cells (goal: 2) it was faster" in said
    assert "In 2 of 5 cells, the search took less time than training once with each builder." in said
    assert judging.rows_of([same])[0][2:5] == ["adaptive", "1, as it is the same", "1 of 1"]


def test_cells_are_twelve_over_use_cases_links_and_nodes_with_one_slow_node() -> None:
    assert len(set(judging.CELLS)) == 12
    assert [cell.last_percent for cell in judging.CELLS if cell.last_percent < 100] == [25]
    assert {cell.usecase_name for cell in judging.CELLS} == set(judging.SMALL)
    assert {cell.network for cell in judging.CELLS} == {"loopback", "lan", "slow"}
    for cell in judging.CELLS[::4]:
        usecase_from(cell.usecase, None, 1)
        assert cell.small().network == cell.network
        usecase_from(cell.small().usecase, None, 1)


def test_nodes_share_this_machine_but_for_a_slower_one() -> None:
    equal, slow = (judging.resources_of(cell, HERE) for cell in (judging.CELLS[2], judging.CELLS[3]))
    assert [node.host for node in equal.node] == ["here"] * 4
    assert [(node.host, node.cores, node.speed) for node in slow.node] == [("", 1, 4.0), ("", 1, 1.0)]


@pytest.mark.parametrize("cells", ["0", "13", "one", ""])
def test_cells_that_are_none_are_refused(
    cells: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judging.main(["--cells", cells, "--results", str(tmp_path)]) == 2
    assert "is no number of a cell, 1 to 12" in capsys.readouterr().err
