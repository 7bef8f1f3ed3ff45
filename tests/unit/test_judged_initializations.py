"""What the page about initial weights says of the study `inits`."""

from __future__ import annotations

import pytest

from adabench.results.record import RecordError, Run
from tests.records import make_run
from tests.scripts import load_script

judged = load_script("tools/judge_initializations.py").judged


def run(block: int, inits: int, curve: list[float], cpu: float, train_cpu: float) -> Run:
    return make_run(
        "manual",
        block,
        run_id=f"{inits}-{block}",
        cell=f"inits {inits}",
        params={"inits": inits},
        metric="auc",
        metrics={"auc": max(curve)},
        history=[{"epoch": n, "auc": auc, "valid_auc": auc} for n, auc in enumerate(curve, 1)],
        cpu_seconds=cpu,
        train_cpu_seconds=train_cpu,
    )


def test_steps_and_cpu_time_to_the_worst_single_run_s_quality() -> None:
    single = [run(block, 1, [0.5, 0.6, 0.7 + 0.01 * block], cpu=40, train_cpu=30) for block in range(6)]
    searched = [run(block, 2, [0.6, 0.71, 0.72], cpu=60, train_cpu=30) for block in range(6)]
    rows = judged([*single, *searched])
    # 0.7 is what the worst single run reaches: single ones in their third epoch, the others in the second
    assert rows[0][:2] == ("ctr", "search among 2")
    assert rows[0][3].startswith("0.67 [")
    assert rows[0][4].startswith("1.25 [")  # 50 of 40
    # of two blocks the later one is better by 0.01, but for the last, whose other one is the first
    assert rows[1][1:] == ("best of 2, trained to the end", f"{5 * 0.01 / 6:+.4f}", "", "2.0")


def test_a_target_that_is_not_reached_takes_longer_than_the_whole_training() -> None:
    single = [run(block, 1, [0.6, 0.7], cpu=40, train_cpu=30) for block in range(6)]
    searched = [run(block, 8, [0.5, 0.6], cpu=60, train_cpu=30) for block in range(6)]
    rows = judged([*single, *searched])
    assert rows[0][2:] == ("-0.1000 [-0.1000, -0.1000]", "1.50 [1.50, 1.50]", "1.50 [1.50, 1.50]")


def test_runs_without_pairs_are_refused() -> None:
    with pytest.raises(RecordError, match="ctr has no pairs of runs"):
        judged([run(0, 1, [0.5], 40, 30), run(1, 8, [0.5], 40, 30)])
