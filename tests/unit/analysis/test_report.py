import csv
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from adabench.analysis.compare import compare
from adabench.analysis.export import export_runs
from adabench.analysis.figures import draw_figures
from adabench.analysis.report import report_html, write_report
from adabench.analysis.tables import MEANINGS, comparison_rows, usecase_rows
from adabench.results.record import Git, RecordError, Run, Seconds, Session
from adabench.results.store import SessionStore
from tests.records import make_run, make_session, plan_of


def a_run(backend: str, block: int, seconds: float) -> Run:
    return make_run(
        backend,
        block,
        session="demo",
        params={"epochs": 2, "hidden": [8, 4]},
        nodes=2,
        seconds=Seconds(setup=2, train=seconds, eval=0.5, teardown=0.1, total=seconds + 2.6),
        epoch_seconds=[seconds / 2] * 2,
        metrics={"auc": 0.74},
        history=[{"epoch": 1, "auc": 0.70}, {"epoch": 2, "auc": 0.74}],
        counters={
            **{"pulled_local": 90, "pulled_remote": 10, "bytes_sent": 5e6},
            **{"staleness_micros": 6000, "staleness_reads": 4},
        },
        environment="e",
    )


@pytest.fixture
def runs() -> list[Run]:
    good = [a_run(backend, block, 10 + shift + block / 10) for block in range(6) for backend, shift in TIMES]
    failed = msgspec.structs.replace(
        a_run("manual", 6, 1), status="failed", reason="rank 1: <ValueError> & more", metrics={}, history=[]
    )
    return [*good, failed]


TIMES = (("prefetch", 3.0), ("manual", 0.0))


@pytest.fixture
def session(runs: list[Run]) -> Session:
    return make_session(
        "demo",
        command=["adabench", "run", "-u", "ctr[dim=8]"],
        study={},
        study_id="",
        plan=plan_of(runs),
        environment={"cpu": "A processor", "packages": {"torch": "2"}, "governor": None},
        git=Git(commit="0123456789abcdef", dirty=True),
        machine="a machine",
    )


@pytest.fixture
def store(tmp_path: Path, session: Session, runs: list[Run]) -> SessionStore:
    store = SessionStore(tmp_path / "demo")
    store.create(session)
    for run in runs:
        store.append(run)
    return store


def test_a_report_says_what_was_run_on_what_and_how_to_repeat_it(session: Session, runs: list[Run]) -> None:
    page = report_html(session, runs)
    for part in (
        "adabench run -u &#39;ctr[dim=8]&#39;",
        "A processor",
        "0123456789ab with uncommitted changes",
        "12 finished of 13 measured",
        "rank 1: &lt;ValueError&gt; &amp; more",
        "faster",
        "prefers-color-scheme: dark",
        "width=device-width",
        "@media print",
    ):
        assert part in page, part


def test_a_report_and_compare_have_the_same_verdicts(session: Session, runs: list[Run]) -> None:
    # Six blocks are enough for one comparison and too few for the two of both use cases together.
    both = [
        msgspec.structs.replace(run, usecase=usecase, cell=f"{run.cell}-{usecase}")
        for usecase in ("ctr", "gcn")
        for run in runs
    ]
    verdicts = [one.verdict for one in compare(both)]
    assert verdicts == ["too few runs", "too few runs"]
    page = report_html(session, both)
    assert page.count("<td>too few runs</td>") == 2
    assert "6 blocks count, a verdict needs 7" in page
    assert "<td>faster</td>" not in page


def test_the_time_of_the_best_epoch_stands_with_its_quality(session: Session, runs: list[Run]) -> None:
    early = [msgspec.structs.replace(run, best_epoch=1) for run in runs if run.status == "ok"]
    names, rows = usecase_rows(early)
    by_name = dict(zip(names, rows[0], strict=True))
    assert by_name["best epoch"] == "1 [1, 1]"
    # Half of 13 to 13.5 seconds.
    assert by_name["reached after (s)"] == "6.62 [6.50, 6.75]"
    page = report_html(session, early)
    assert "reached after (s)" in page
    assert "stars are the epochs that were best by validation" in page


def test_a_report_explains_its_columns_and_folds_long_values(session: Session, runs: list[Run]) -> None:
    flags = "-O3 " * 100
    environment = {"flags": flags, "cpu": "c", "load": [0.83349609375, 1.0], "variables": {}}
    page = report_html(msgspec.structs.replace(session, environment=environment), runs)
    explained = re.findall(r"<dt>([^<]*)</dt>", page)
    for names in (usecase_rows(runs)[0], comparison_rows(compare(runs))[0]):
        assert set(names) & MEANINGS.keys() <= set(explained)
        assert set(names) - {"use case", "backend", "auc", "logloss"} <= MEANINGS.keys()
    (folded,) = re.findall(r"<summary>(-O3[^<]*)</summary>([^<]*)</details>", page)
    assert len(folded[0]) <= 60
    assert folded[1] == flags
    for value in ("c", "0.8335; 1", "none"):
        assert f"<td>{value}</td>" in page


def test_ranges_of_a_report_are_not_broken_so_that_its_tables_need_no_scrollbar(
    session: Session, runs: list[Run]
) -> None:
    page = report_html(session, runs)
    for cell in re.findall(r"<td>(\d[^<]*\])</td>", page):
        assert re.fullmatch(r"\S+ \[\S+,\N{NO-BREAK SPACE}\S+\]", cell, re.ASCII)
    assert "nowrap" not in page


def test_a_line_may_break_after_the_punctuation_of_a_long_name(session: Session, runs: list[Run]) -> None:
    policies = {"prefetch": "robust[aggregation=trimmed_mean,faulty=2]", "manual": "<adaptive>"}
    named = [msgspec.structs.replace(run, params={"policy": policies[run.backend]}) for run in runs]
    page = report_html(session, named)
    name = "prefetch (policy=<wbr>robust[<wbr>aggregation=<wbr>trimmed_mean,<wbr>faulty=2])"
    assert f"<td>{name}</td>" in page
    assert "<td>manual (policy=&lt;adaptive&gt;)</td>" in page


def test_equal_reasons_for_no_verdict_are_one_sentence(session: Session, runs: list[Run]) -> None:
    few = [run for run in runs if run.block < 3]
    slow = [run for run in few if run.backend == "manual"]
    more = [msgspec.structs.replace(run, backend="other", cell="other") for run in slow]
    page = report_html(session, [*few, *more])
    assert re.findall(r"<p>([^<]*too few runs[^<]*)</p>", page) == [
        "manual; other: too few runs: 3 blocks count, a verdict needs 7."
    ]


def test_a_report_needs_nothing_but_itself(session: Session, runs: list[Run]) -> None:
    page = report_html(session, runs)
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    loaded = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)|url\(([^)]*)\)""", page)
    assert all(target.startswith("#") for pair in loaded for target in pair if target)


def test_every_figure_of_a_report_is_a_sound_svg_in_the_colour_of_the_page(
    session: Session, runs: list[Run]
) -> None:
    figures = re.findall(r"<svg.*?</svg>", report_html(session, runs), re.DOTALL)
    assert len(figures) == 6  # bars, thesis, ratios, quality, phases, parameter server
    assert "age of values read from replicas, mean (ms)" in figures[-1]
    for figure in figures:
        ElementTree.fromstring(figure)
        assert "currentColor" in figure
        assert "#262626" not in figure


def test_a_report_without_parameter_server_or_second_backend_is_shorter(
    session: Session, runs: list[Run]
) -> None:
    alone = [msgspec.structs.replace(run, counters={}) for run in runs if run.backend == "manual"]
    page = report_html(session, alone)
    assert len(re.findall("<svg", page)) == 3
    assert "The parameter server" not in page
    assert "Compared block by block" not in page


def test_equal_records_give_equal_reports(session: Session, runs: list[Run]) -> None:
    assert report_html(session, runs) == report_html(session, runs)


def test_a_report_needs_a_finished_run_and_an_existing_baseline(session: Session, runs: list[Run]) -> None:
    with pytest.raises(RecordError, match="session demo has no finished run to report"):
        report_html(session, runs[-1:])
    with pytest.raises(RecordError, match="there is no baseline 'single'"):
        report_html(session, runs, "single")


def test_export_keeps_every_run_and_every_field(store: SessionStore, runs: list[Run]) -> None:
    rows = list(csv.DictReader(export_runs(store, "csv").read_text().splitlines()))
    assert [row["run_id"] for row in rows] == [run.run_id for run in runs]
    assert float(rows[0]["seconds.train"]) == 13.0
    assert json.loads(rows[0]["epoch_seconds"]) == [6.5, 6.5]
    records = msgspec.json.decode(export_runs(store, "json").read_bytes(), type=list[Run])
    assert records == store.runs()


def test_export_to_parquet(store: SessionStore) -> None:
    frame = pd.read_parquet(export_runs(store, "parquet"))
    assert frame["metrics.auc"].count() == 12
    assert frame["params.hidden"][0] == "[8,4]"


def test_nothing_recorded_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="has no runs to export"):
        export_runs(SessionStore(tmp_path), "csv")


def test_a_report_is_written_beside_the_records(store: SessionStore, runs: list[Run]) -> None:
    file = write_report(store)
    assert file == store.folder / "report.html"
    assert file.read_text().startswith("<!doctype html>")
    assert "The life of keys" not in file.read_text()
    events = [("relocated_away", 0), ("relocated_here", 1), ("replica_set_up", 0), ("replica_dropped", 0)]
    traced = [
        {"time": time, "node": node, "table": "deep.weight", "row": 3, "key": 7, "event": event}
        for time, (event, node) in enumerate(events)
    ]
    store.write_trace(runs[0].run_id, traced)
    page = write_report(store).read_text()
    assert "The life of keys" in page
    assert "key 7: deep.weight[3]" in page
    assert [file.name for file in draw_figures(store)][-2:] == ["ctr-life.png", "ctr-life.svg"]
