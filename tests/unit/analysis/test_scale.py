"""Recording access streams, replaying them on simulated clusters, and drawing what came out."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from adabench.analysis.scale import MEASURES, TECHNIQUES, derived, draw_scale, save_figures
from adabench.backends.strategies._simulate import streams_of
from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from tests.scripts import ROOT, load_script

scale = load_script("tools/measure_scale.py")
REFERENCE = ROOT / "results" / "reference"

NODES, STEPS = 4, 20


@pytest.fixture(scope="module")
def usecase() -> CtrUseCase:
    return CtrUseCase(CtrParams(batch=8, dim=4, wide=False, vocabulary=50, rows=4000), None, 1)


def counted(technique: str, nodes: int = 2) -> dict[str, object]:
    names = ["node_steps", "waited_micros", "pulled_local", "pulled_replica", "pulled_remote"]
    names += ["relocations", "bytes_rows", "messages_rows", "frames"]
    row = dict(zip(names, [10, 50_000, 60, 30, 10, 20, 40_000, 500, 80], strict=True))
    return {"usecase": "ctr", "technique": technique, "nodes": nodes, **row}


def test_streams_hold_what_the_loaders_give(usecase: CtrUseCase) -> None:
    streams = streams_of(usecase, NODES, STEPS)
    assert len(streams) == NODES
    for rank, stream in enumerate(streams):
        assert stream.placed == {}
        batches = islice(usecase.loaders(rank, NODES).train, STEPS)
        for step, batch in zip(stream.steps, batches, strict=True):
            assert np.array_equal(np.asarray(step["deep.weight"]), usecase.keys(batch)["deep.weight"].numpy())


def test_a_streams_steps_go_on_with_the_next_epoch(usecase: CtrUseCase) -> None:
    epoch = len(streams_of(usecase, NODES, None)[0].steps)
    assert len(streams_of(usecase, NODES, epoch + 3)[0].steps) == epoch + 3


def test_recorded_streams_are_replayed(usecase: CtrUseCase) -> None:
    streams = streams_of(usecase, NODES, STEPS)
    adaptive, static = (scale.replay(usecase, streams, technique) for technique in ("adaptive", "static"))
    columns = pd.read_csv(REFERENCE / "scale" / "scale.csv").columns
    for one in (adaptive, static):
        assert set(one) < set(columns)
        assert one["nodes"] == NODES
        assert one["node_steps"] > 0
        for what in ("messages", "bytes"):
            parts = {one[f"{what}_rows"], one[f"{what}_dense"]}
            by_type = [count for name, count in one.items() if name.startswith(what)]
            assert sum(by_type) == 2 * sum(parts) > 0
    assert adaptive["pulled_remote"] == 0
    assert static["pulled_remote"] > 2 * static["pulled_local"]  # three quarters are at home elsewhere
    assert static["relocations"] == static["replicas_set_up"] == 0
    with pytest.raises(ValueError, match="technique 'magic'"):
        scale.replay(usecase, streams, "magic")


def test_measures_are_per_node_and_step() -> None:
    (row,) = derived(pd.DataFrame([counted("adaptive")])).to_dict("records")
    assert row["local_share"] == pytest.approx(90)
    assert row["waited_ms"] == pytest.approx(5)
    assert row["kilobytes"] == pytest.approx(4)
    assert row["messages"] == pytest.approx(50)
    assert row["frames"] == pytest.approx(8)
    assert row["relocations"] == pytest.approx(2)


def test_a_figure_has_a_panel_a_measure_and_a_line_a_technique() -> None:
    rows = [counted(technique, nodes) for technique in TECHNIQUES for nodes in (2, 4, 8)]
    rows = [row for row in rows if row["technique"] != "full_replication" or row["nodes"] == 2]
    figure = draw_scale(pd.DataFrame(rows))
    assert len(figure.axes) == len(MEASURES)
    for axes in figure.axes:
        assert [len(line.get_xdata()) for line in axes.lines] == [3, 3, 3, 3, 1]  # type: ignore[arg-type]


def test_a_figure_shows_one_use_case() -> None:
    rows = [counted("adaptive"), {**counted("adaptive"), "usecase": "gcn"}]
    with pytest.raises(ValueError, match="one use case, not ctr, gcn"):
        draw_scale(pd.DataFrame(rows))


def test_the_recorded_figures_are_those_of_the_records(tmp_path: Path) -> None:
    frame = pd.read_csv(REFERENCE / "scale" / "scale.csv")
    for file in save_figures(frame, tmp_path):
        assert file.read_text() == (REFERENCE / "scale" / file.name).read_text()


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert scale.main(["--out", str(tmp_path), "--nodes", "2,many"]) == 2
    assert capsys.readouterr().err == "error: --nodes 'many' is no number of nodes from 2 to 256\n"
