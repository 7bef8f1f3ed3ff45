"""What the page about the search says of its twelve cells."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from adabench.backends.policies.protocol import Costs, Link, Node, Policy, Resources, Rule
from adabench.harness.planning.catalogue import usecase_from
from adabench.results.record import RecordError, Run, Seconds
from tests.records import make_run
from tests.scripts import load_script

judging = load_script("tools/judge_search.py")

FOUND = Policy("found", [Rule("*")], evidence={"candidate": "found, rows alike"})
CELL = judging.CELLS[0]
HERE = Resources(
    node=(Node(cores=2, speed=4.0),) * 2,
    links=Link(latency_ms=0.02, gbit_per_second=8.0),
    costs=Costs(call=1.0, key=0.1, value=0.001, message=0.2, frame=5.0, byte=0.002, speed=4.0),
)


def runs(policy: str, seconds: float, blocks: int = 6, **fields: Any) -> list[Run]:
    return [
        make_run(
            "autoada-automatic",
            block,
            cell=policy,
            params={"policy": policy},
            seconds=Seconds(train=seconds * (1 + 0.01 * block), total=seconds + 2),
            **fields,
        )
        for block in range(blocks)
    ]


def test_the_found_policy_meets_the_best_builder_block_by_block() -> None:
    all_runs = [*runs("/a/found-1.toml", 9.0), *runs("adaptive", 10.0), *runs("static", 14.0)]
    verdict = judging.judged(CELL, FOUND, 20.0, all_runs)
    assert (verdict.candidate, verdict.builder, verdict.blocks) == ("found, rows alike", "adaptive", 6)
    assert verdict.ratio == pytest.approx(0.9)
    assert verdict.low == pytest.approx(0.9)
    assert verdict.high == pytest.approx(0.9)
    assert (verdict.search_seconds, verdict.builders_seconds) == (20.0, 12.0 + 16.0)
    (row,) = judging.rows_of([verdict])
    assert row[1:] == ["found, rows alike", "adaptive", "0.900 [0.900, 0.900]", "20 s", "28 s"]


def test_a_single_block_has_no_interval() -> None:
    verdict = judging.judged(CELL, FOUND, 20.0, [*runs("x.toml", 11.0, 1), *runs("nups", 10.0, 1)])
    assert math.isnan(verdict.high)
    assert judging.rows_of([verdict])[0][3] == "1.100"


def test_builders_that_fail_are_not_the_best_and_without_any_there_is_no_verdict() -> None:
    failed = runs("static", 1.0, status="failed", reason="it fell")
    verdict = judging.judged(CELL, FOUND, 1.0, [*runs("x.toml", 9.0), *runs("adaptive", 10.0), *failed])
    assert verdict.builder == "adaptive"
    with pytest.raises(RecordError, match="no run with the found policy, or none with a builder's"):
        judging.judged(CELL, FOUND, 1.0, [*runs("x.toml", 9.0), *failed])
    shifted = [run for run in runs("adaptive", 10.0, 2) if run.block == 1]
    with pytest.raises(RecordError, match="no block has the found policy and adaptive"):
        judging.judged(CELL, FOUND, 1.0, [*runs("x.toml", 9.0, 1), *shifted])


def test_the_summary_counts_what_is_wanted() -> None:
    def verdict(ratio: float, high: float, search: float) -> Any:
        return judging.Verdict("c", "found", "static", 6, ratio, ratio, high, search, 50.0)

    said = judging.summary_of([verdict(0.8, 0.9, 40.0), verdict(1.04, 1.06, 60.0), verdict(1.08, 1.2, 20.0)])
    assert "at most 5 % more time than the best builder's in 2 of 3 cells" in said
    assert "1.080 times as long in the worst" in said
    assert "faster beyond the interval in 1 " in said
    assert "training once with each builder in 2 of 3." in said


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
