"""``adabench compare``: what passes a gate and what does not."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from adabench.analysis.tables import shortened
from adabench.harness.cli.commands_results import compare
from adabench.harness.errors import UsageError
from adabench.results.record import Run, Seconds
from adabench.results.store import SessionStore
from tests.records import make_run, make_session

SLOWDOWN = "ratio_low > 1.03"


def a_run(backend: str, block: int, seconds: float, auc: float = 0.7) -> Run:
    return make_run(
        backend,
        block,
        seconds=Seconds(train=seconds, total=seconds),
        metrics={"auc": auc},
        metric="auc",
        tolerance=0.005,
    )


def a_session(root: Path, runs: list[Run]) -> None:
    store = SessionStore(root / "s")
    store.create(make_session())
    for run in runs:
        store.append(run)


def exit_code(root: Path, fail_if: str | None, *, fail_undecided: bool = False) -> int:
    try:
        compare("s", None, "prefetch", fail_if, fail_undecided, results=root)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def blocks(count: int, factor: float, scatter: float = 0.0, auc: float = 0.7) -> list[Run]:
    return [
        run
        for block in range(count)
        for run in (
            a_run("prefetch", block, 10),
            a_run("other", block, 10 * factor * (1 + scatter * (-1) ** block), auc),
        )
    ]


def test_a_slowdown_fails_and_a_gain_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_session(tmp_path, blocks(6, 2))
    assert exit_code(tmp_path, None) == 0
    assert exit_code(tmp_path, SLOWDOWN) == 3
    assert "regression: ctr other: ratio_low > 1.03 holds" in capsys.readouterr().out
    a_session(tmp_path / "quick", blocks(6, 0.5))
    assert exit_code(tmp_path / "quick", SLOWDOWN) == 0
    assert "below 1 is faster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (blocks(3, 2), "too few runs, 3 blocks count, a verdict needs 6"),
        (blocks(6, 1, auc=0.6), "quality differs, auc differs by -0.1000"),
        ([run for run in blocks(6, 1) if run.backend == "prefetch"], "there is nothing to compare"),
    ],
    ids=["too-few", "quality", "nothing"],
)
def test_what_cannot_be_judged_does_not_pass(
    runs: list[Run], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_session(tmp_path, runs)
    assert exit_code(tmp_path, SLOWDOWN) == 3
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cannot be judged: ")]
    assert len(said) == 1
    assert reason in said[0]
    assert exit_code(tmp_path, None) == 0


def test_whether_undecided_passes_is_the_users_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_session(tmp_path, blocks(8, 1, scatter=0.1))
    assert exit_code(tmp_path, SLOWDOWN) == 0
    assert exit_code(tmp_path, SLOWDOWN, fail_undecided=True) == 3
    assert "cannot be judged: ctr other: undecided" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--fail-undecided needs --fail-if"):
        exit_code(tmp_path, None, fail_undecided=True)


def test_a_comparison_is_printed_for_programs_and_for_pages(said: Any, tmp_path: Path) -> None:
    a_session(tmp_path, blocks(6, 2))
    given = ("--results", str(tmp_path))
    code, out, err = said("compare", "--json", *given, "--fail-if", SLOWDOWN)
    assert (code, err) == (3, f"regression: ctr other: {SLOWDOWN} holds\n")
    found = json.loads(out)
    assert found["session"] == "s"
    (one,) = found["comparisons"]
    assert (one["label"], one["baseline"], one["verdict"], one["n"]) == ("other", "prefetch", "slower", 6)
    assert one["ratio"] == pytest.approx(2.0)

    code, out, err = said("compare", "--markdown", *given)
    assert (code, err) == (0, "")
    assert out.startswith("## session s\n\n")
    assert "| other   | 6      | 2.000 |" in out
    assert said("compare", *given)[1] == out.removeprefix("## ")
    assert said("compare", "--markdown", "--json", *given)[0] == 2


def test_each_table_of_a_comparison_names_its_measure(said: Any, tmp_path: Path) -> None:
    with_target = [
        msgspec.structs.replace(
            run, usecase="mf", cell=f"mf {run.cell}", run_id=f"mf-{run.run_id}", target=target, **reached
        )
        for run in blocks(6, 2)
        for target, reached in [({"auc": 0.7}, {"seconds_to_target": run.seconds.train})]
    ]
    a_session(tmp_path, [*blocks(6, 2), *with_target])
    lines = said("compare", "--results", str(tmp_path))[1].splitlines()
    assert "each block's ratio to the baseline's; below 1 is faster" in lines
    assert "ctr, 1 node: training time against prefetch" in lines
    assert "mf, 1 node: time to target against prefetch" in lines


def test_numbers_that_are_not_known_are_null(said: Any, tmp_path: Path) -> None:
    a_session(tmp_path, [a_run("prefetch", 0, 1.0), a_run("other", 1, 1.0)])
    (one,) = json.loads(said("compare", "--json", "--results", str(tmp_path))[1])["comparisons"]
    assert (one["ratio"], one["verdict"], one["reason"]) == (None, "no runs", "no block has both runs")


def test_two_sessions_are_compared_for_programs(said: Any, tmp_path: Path) -> None:
    for name in ("old", "new"):
        a_session(tmp_path / name, blocks(6, 2))
    paths = [str(tmp_path / name / "s") for name in ("old", "new")]
    found = json.loads(said("compare", *paths, "--json")[1])
    assert (found["before"], found["after"]) == ("s", "s")
    assert {one["verdict"] for one in found["comparisons"]} == {"undecided"}


def test_a_session_is_shown_by_its_table_and_its_runs_by_their_cells(said: Any, tmp_path: Path) -> None:
    lookahead = [
        msgspec.structs.replace(a_run("prefetch", 0, 1.0), run_id=f"r{ahead}", cell=f"{ahead}", params=params)
        for ahead in (5, 10)
        for params in ({"lookahead": ahead},)
    ]
    failed = msgspec.structs.replace(a_run("other", 0, 1.0), status="failed", reason="it burned")
    a_session(tmp_path, [*lookahead, failed])
    code, out, err = said("show", "--results", str(tmp_path / "s"))
    assert (code, err) == (0, "")
    assert out.startswith("ctr: mean [least, greatest] of n runs\n\n| backend ")
    assert "2 runs ok of 3 recorded and 0 planned; --runs lists them" in out
    assert out.splitlines()[-1] == "failed: other (other-0): it burned"
    assert "r10" not in out
    out = said("show", "s", "--runs", "--results", str(tmp_path))[1]
    assert "| r10     | prefetch (lookahead=10) |" in out


def test_a_report_is_written_for_a_session_given_by_its_path(said: Any, tmp_path: Path) -> None:
    a_session(tmp_path, blocks(2, 1))
    for arguments in ((str(tmp_path / "s"),), ("--results", str(tmp_path / "s"))):
        assert said("report", *arguments) == (0, "s/report.html\n", "")


def test_a_long_name_is_shortened_in_the_middle() -> None:
    assert shortened("autoada-automatic (lookahead=10)", 40) == "autoada-automatic (lookahead=10)"
    assert shortened("autoada-automatic (lookahead=10)", 20) == "autoada-a…kahead=10)"
    assert all(len(shortened("autoada-automatic", width)) == min(width, 17) for width in range(1, 20))
