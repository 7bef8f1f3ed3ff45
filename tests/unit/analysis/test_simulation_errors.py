"""How far simulated times are off: errors, orders and the figure; and judging a session of runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adabench.analysis.simulation_errors import (
    SimulatedCell,
    draw_errors,
    error_rows,
    order_is_right,
    setting_rows,
)
from adabench.backends.policies.resources import Link, Node, Resources
from adabench.harness.study.study import built_in_studies, load_study
from adabench.results.record import RecordError, Run, Seconds
from adabench.results.store import SessionStore
from tests.records import COSTS, make_run, make_session
from tests.scripts import load_script

judging = load_script("tools/judge_simulation.py")

PARAMS = {"rows": 1000, "vocabulary": 50, "batch": 64, "dim": 4, "hidden": [8], "epochs": 2, "lookahead": 5}
SPEC = "ctr[batch=64,dim=4,hidden=8,rows=1000,vocabulary=50]"


def cell(technique: str, measured: float, simulated: float, **fields: Any) -> SimulatedCell:
    given: dict[str, Any] = {"usecase": "ctr", "setting": "one", "held_out": False, "nodes": 2, "runs": 3}
    given |= {"cpu": 4.0, "simulated_cpu": 5.0, "kilobytes": 10.0, "simulated_kilobytes": 10.0}
    given |= {"milliseconds": measured, "simulated_milliseconds": simulated, **fields}
    return SimulatedCell(technique=technique, **given)


def trained(technique: str, block: int, network: str = "lan") -> Run:
    policy = {"policy": f"uniform[technique={technique}]"}
    return make_run(
        "autoada-automatic",
        block,
        run_id=f"{technique}-{network}-{block}",
        cell=f"{technique}-{network}",
        params={**PARAMS, **policy},
        nodes=2,
        network=network,
        seconds=Seconds(train=0.05 + 0.01 * block, total=2.0),
        train_cpu_seconds=0.06,
        counters={"bytes_sent": 1e6},
    )


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    found = SessionStore(tmp_path / "s")
    patterns = [{"usecase": "ctr", "network": "lan"}, {"usecase": "ctr", "network": "slow", "lookahead": 5}]
    found.create(make_session("s", study={"name": "predictions", "include": patterns}))
    for run in (*(trained("static", block) for block in range(3)), trained("adaptive", 0, "slow")):
        found.append(run)
    return found


def test_an_order_is_right_if_all_that_differ_are_in_it() -> None:
    fast, slow = cell("adaptive", 10, 9), cell("static", 20, 30)
    assert order_is_right([fast, slow])
    assert not order_is_right([fast, cell("static", 20, 8)])
    assert order_is_right([fast, cell("static", 10.4, 8)])  # as good as equal


def test_errors_are_those_of_what_was_looked_at_and_of_what_was_not() -> None:
    cells = [
        cell("static", 10, 12),
        cell("adaptive", 10, 9),
        cell("static", 20, 5, setting="two", held_out=True),
        cell("adaptive", 10, 10, setting="two", held_out=True, kilobytes=0.0),
    ]
    seen, unseen = error_rows(cells)
    assert (seen["cells"], seen["time: median"], seen["time: worst"]) == ("2 looked at", "15.0 %", "20.0 %")
    assert (seen["CPU time: median"], seen["bytes: worst"]) == ("25.0 %", "0.0 %")
    assert (unseen["cells"], unseen["time: worst"]) == ("2 held out", "75.0 %")
    assert (seen["orders right"], unseen["orders right"]) == ("1 of 1", "0 of 1")
    one, two = setting_rows(cells)
    assert (one["setting"], one["fastest"], one["static"], one["order"]) == (
        "`one`",
        "10.00 ms",
        "1.20",
        "right",
    )
    assert (two["setting"], two["relocation"], two["order"]) == ("`two` (held out)", "–", "wrong")


def test_the_figure_has_every_cell_and_the_identity() -> None:
    cells = [
        cell("static", 10, 12),
        cell("static", 3, 2, usecase="mf", held_out=True),
        cell("static", 4, 5, usecase="mf"),
    ]
    (axes,) = draw_errors(cells).axes
    drawn = [tuple(point) for scatter in axes.collections for point in np.asarray(scatter.get_offsets())]
    assert sorted(drawn) == [(3, 2), (4, 5), (10, 12)]
    lines = [np.asarray(line.get_xydata()) for line in axes.lines]
    (identity,) = [line for line in lines if np.array_equal(line[:, 0], line[:, 1])]
    assert identity[0, 0] < 3 < 10 < identity[1, 0]


def test_cells_of_a_session_are_simulated(store: SessionStore) -> None:
    node = Node(cores=2, speed=4.0)
    links = Link(latency_ms=0.02, gbit_per_second=20.0)
    resources = Resources(node=(node, node), links=links, costs=COSTS, steps={f"{SPEC} on 2 nodes": 1.0})
    static, adaptive = judging.judged(store, dict.fromkeys(("lan", "slow"), resources))
    assert (static.technique, adaptive.technique) == ("static", "adaptive")
    assert (static.held_out, adaptive.held_out) == (False, True)
    assert static.setting == f"{SPEC}, 2 nodes, lan, lookahead 5"
    steps = 2 * (1000 * 5 // 7 // 2 // 64)  # two epochs of whole batches: half of five sevenths of the rows
    assert static.milliseconds == pytest.approx(1e3 * 0.06 / steps)  # the median of three runs
    assert static.cpu == pytest.approx(1e3 * 0.06 / (2 * steps))
    assert static.kilobytes == pytest.approx(1e3 / (2 * steps))
    assert static.simulated_milliseconds > 1.0 + 4 * 0.25  # it waits for links, several times per step
    assert 1.0 < static.simulated_cpu < static.simulated_milliseconds
    assert adaptive.simulated_milliseconds != static.simulated_milliseconds


def test_what_was_measured_before_is_taken_from_its_file(tmp_path: Path) -> None:
    here = Resources(node=(Node(),), costs=COSTS, steps={SPEC: 1.0})
    shaped = msgspec.structs.replace(here, costs=replace(COSTS, frame=9.0))
    (tmp_path / "resources.toml").write_text(here.text())
    (tmp_path / "resources-lan.toml").write_text(shaped.text())
    assert judging.resources_for([trained("static", 0)], tmp_path) == {"loopback": here, "lan": shaped}


def test_a_session_of_another_study_is_refused(tmp_path: Path) -> None:
    other = SessionStore(tmp_path / "other")
    other.create(make_session("other", study={"name": "other", "include": []}))
    with pytest.raises(RecordError, match="no run ended well"):
        judging.judged(other, {})
    other.append(trained("static", 0))
    with pytest.raises(RecordError, match="no pattern of the study 'predictions' includes ctr"):
        judging.judged(other, {"lan": Resources.alike(2)})


def test_the_study_has_twelve_settings_with_all_techniques_and_half_are_held_out() -> None:
    study = load_study(built_in_studies()["predictions"], "predictions", {})
    several = [pattern for pattern in study.include if pattern["nodes"] > 1]
    assert (len(several), len(study.include)) == (12, 16)
    (backend,) = study.backends
    assert len(backend.values["policy"]) == 5
    for held_out in (0, 1):  # every use case is on both sides
        assert {one["usecase"] for one in several[held_out::2]} == {"ctr", "mf", "kge", "word2vec", "gcn"}
