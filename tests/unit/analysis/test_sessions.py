"""Several sessions: what changed between two, and a cell's ratio over commits; and sweeps of a parameter."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adabench.analysis.figures import draw_figures
from adabench.analysis.sessions import compare_sessions, history
from adabench.analysis.sweeps import draw_sweep, swept
from adabench.analysis.tables import session_comparison_table
from adabench.harness.cli.commands_history import history as history_command
from adabench.harness.cli.commands_results import compare
from adabench.harness.errors import UsageError
from adabench.results.record import Git, RecordError, Run, Seconds
from adabench.results.store import SessionStore
from tests.records import make_run, make_session


def a_run(
    backend: str, block: int, seconds: float, *, lookahead: int = 20, nodes: int = 1, environment: str = "e"
) -> Run:
    return make_run(
        backend,
        block,
        run_id=f"{backend}-{lookahead}-{nodes}-{block}",
        cell=f"{backend} {lookahead} {nodes}",
        params={"lookahead": lookahead, "timing": True},
        nodes=nodes,
        seconds=Seconds(train=seconds, total=seconds),
        metrics={"auc": 0.7},
        samples=1000,
        epoch_seconds=[seconds],
        train_cpu_seconds=seconds,
        environment=environment,
    )


def some(factors: dict[str, float], blocks: int = 8, seed: int = 0) -> list[Run]:
    generator = np.random.default_rng(seed)
    return [
        a_run(backend, block, float(10 * factor * generator.lognormal(0, 0.005)))
        for block in range(blocks)
        for backend, factor in factors.items()
    ]


def kept(root: Path, name: str, runs: list[Run], created_at: str, commit: str) -> None:
    store = SessionStore(root / name)
    store.create(make_session(name, created_at=created_at, git=Git(commit=commit * 10, dirty=False)))
    for run in runs:
        store.append(run)


def test_two_sessions_are_compared_cell_by_cell_though_their_sources_differ() -> None:
    before = some({"a": 1, "b": 1, "gone": 1})
    again = some({"a": 1, "b": 1.2, "new": 1}, seed=1)
    after = [msgspec.structs.replace(run, cell=f"new {run.cell}") for run in again]
    found = {one.label: one for one in compare_sessions(before, after)}
    assert {label: one.verdict for label, one in found.items()} == {
        "a, 1 × 1, loopback": "undecided",
        "b, 1 × 1, loopback": "slower",
    }
    assert found["b, 1 × 1, loopback"].ratio == pytest.approx(1.2, rel=0.01)
    few = compare_sessions(some({"a": 1}, blocks=2), some({"a": 2}, blocks=2))
    assert [one.verdict for one in few] == ["too few runs"]


def test_a_cell_of_another_session_is_equal_in_everything_but_sources_and_policy() -> None:
    before = some({"a": 1})
    for changes in (
        {"params": {"lookahead": 50, "timing": True}},
        {"nodes": 4},
        {"pinned": True},
        {"last_node_percent": 50},
        {"data": "sha256:1"},
    ):
        after = [msgspec.structs.replace(run, **changes) for run in before]
        with pytest.raises(RecordError, match=r"no cell in common: .* equal use case, backend, parameters"):
            compare_sessions(before, after)
    swept_after = [
        *(msgspec.structs.replace(run, cell="new", policy="changed") for run in before),
        *(a_run("a", block, 1.0, lookahead=50) for block in range(8)),
    ]
    (one,) = compare_sessions(before, swept_after)
    assert (one.label, one.before, one.after) == ("a (lookahead=20), 1 × 1, loopback", 8, 8)


def test_sessions_with_different_work_or_quality_have_no_verdict_on_time() -> None:
    before = some({"a": 1})
    work = [msgspec.structs.replace(run, samples=500) for run in some({"a": 0.5})]
    quality = [msgspec.structs.replace(run, metrics={"auc": 0.5}) for run in some({"a": 0.5})]
    (one,) = found = compare_sessions(before, work)
    assert (one.verdict, one.reason) == ("work differs", "block 1 trained on 500 samples instead of 1000")
    line = "ctr a, 1 × 1, loopback: work differs: block 1 trained on 500 samples instead of 1000"
    assert session_comparison_table(found, "one", "two").endswith(f"\n\n{line}")
    assert [one.verdict for one in compare_sessions(before, quality)] == ["quality differs"]


def test_sessions_without_a_common_cell_or_environment_are_not_compared() -> None:
    with pytest.raises(RecordError, match="no cell in common"):
        compare_sessions(some({"a": 1}), some({"b": 1}))
    other = [msgspec.structs.replace(run, environment="other") for run in some({"a": 1})]
    with pytest.raises(RecordError, match="of different environments"):
        compare_sessions(some({"a": 1}), other)


def test_a_rank_sum_is_right_as_often_as_it_says() -> None:
    generator = np.random.default_rng(3)
    wrong = 0
    for _ in range(200):
        runs = [
            [a_run(name, block, float(generator.lognormal(2, 0.05))) for block in range(6) for name in "abc"]
            for _ in range(2)
        ]
        wrong += any(one.verdict in ("faster", "slower") for one in compare_sessions(*runs))
    assert wrong / 200 < 0.1  # at a true rate of 5 % more has a probability below 0.002


def test_the_command_compares_two_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path, "one", some({"a": 1}), "2026-01-01T00:00:00+00:00", "abcd")
    kept(tmp_path, "two", some({"a": 1.2}, seed=1), "2026-01-02T00:00:00+00:00", "ef01")
    compare("one", "two", results=tmp_path)
    said = capsys.readouterr().out
    assert "training time in two: its ratio to that in one; below 1 is faster" in said
    assert "slower" in said
    with pytest.raises(UsageError, match="--baseline and --fail-if are for the backends of one session"):
        compare("one", "two", "a", results=tmp_path)


def test_history_follows_a_cell_over_commits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path, "late", some({"prefetch": 1, "b": 1.2}), "2026-01-03T00:00:00+00:00", "ef01")
    kept(tmp_path, "early", some({"prefetch": 1, "b": 0.8}), "2026-01-01T00:00:00+00:00", "abcd")
    kept(tmp_path, "alone", some({"b": 0.8}), "2026-01-02T00:00:00+00:00", "1234")
    stores = [SessionStore(tmp_path / name) for name in ("late", "early", "alone")]
    moments = history((store.session(), store.runs()) for store in stores)
    verdicts = [(one.session, one.comparison.verdict) for one in moments]
    assert verdicts == [("early", "faster"), ("late", "slower")]
    history_command(None, "b", None, tmp_path)
    said = capsys.readouterr().out
    assert "ctr: b against prefetch" in said
    assert said.index("abcdabcdabcd") < said.index("ef01ef01ef01")
    with pytest.raises(UsageError, match="unknown use case 'gcn'"):
        history_command("gcn", None, None, tmp_path)


def test_history_shows_different_cells_in_different_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = some({"prefetch": 1, "b": 1.2})
    changed: dict[str, dict[str, Any]] = {
        "same": {"policy": "changed"},
        "ahead": {"params": {"lookahead": 50, "timing": True}},
        "nodes": {"nodes": 4},
        "data": {"data": "sha256:1"},
    }
    kept(tmp_path, "first", runs, "2026-01-01T00:00:00+00:00", "abcd")
    for name, changes in changed.items():
        others = [msgspec.structs.replace(run, **changes) for run in runs]
        kept(tmp_path, name, others, "2026-01-02T00:00:00+00:00", "ef01")
    history_command(None, "b", None, tmp_path)
    tables = [line for line in capsys.readouterr().out.splitlines() if " against " in line]
    assert tables == [
        f"ctr: b (lookahead={ahead}, nodes={nodes}){data} against "
        f"prefetch (lookahead={ahead}, nodes={nodes}){data}"
        for ahead, nodes, data in (
            (20, 1, ", data None"),
            (50, 1, ""),
            (20, 1, ", data sha256:1"),
            (20, 4, ""),
        )
    ]


def test_three_values_make_a_sweep(tmp_path: Path) -> None:
    runs = [
        a_run(backend, block, 10 / nodes + lookahead / 100, lookahead=lookahead, nodes=nodes)
        for block in range(2)
        for backend in ("a", "b")
        for lookahead in (0, 10, 50)
        for nodes in (1, 2)
    ]
    assert swept(runs) == ["lookahead"]
    figure = draw_sweep(runs, "lookahead")
    (axes,) = figure.axes
    lines = axes.get_legend_handles_labels()[1]
    assert lines == ["a (nodes=1)", "a (nodes=2)", "b (nodes=1)", "b (nodes=2)"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "10", "50"]
    kept(tmp_path, "sweep", runs, "2026-01-01T00:00:00+00:00", "abcd")
    names = {file.name for file in draw_figures(SessionStore(tmp_path / "sweep"))}
    assert "ctr-by-lookahead.svg" in names
    hostile = [msgspec.structs.replace(run, params={"../x": run.params["lookahead"]}) for run in runs]
    assert swept(hostile) == []
