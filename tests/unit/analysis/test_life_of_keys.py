"""The picture of a trace matches its events."""

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from adabench.analysis.life_of_keys import Span, draw_life_of_keys, lives

# Key 7 is owned by node 0, replicated on node 1 and moved there; it comes back while key 8 stays at node 1.
EVENTS = [
    (1_000_000, 0, 7, "alloc"),
    (1_000_000, 0, 7, "intent_start"),
    (1_001_000, 1, 7, "intent_start"),
    (1_002_000, 1, 7, "replica_set_up"),
    (1_004_000, 0, 7, "intent_stop"),
    (1_004_000, 0, 7, "relocated_away"),
    (1_005_000, 1, 7, "relocated_here"),
    (1_006_000, 1, 7, "intent_stop"),
    (1_008_000, 1, 7, "relocated_away"),
    (1_009_000, 0, 7, "relocated_here"),
    (1_009_500, 0, 7, "retired"),
    (1_003_000, 0, 8, "replica_dropped"),
    (1_010_000, 1, 8, "alloc"),
]


def frames() -> list[pd.DataFrame]:
    rows = [(time, node, "emb", key - 5, key, event) for time, node, key, event in EVENTS]
    frame = pd.DataFrame(rows, columns=["time", "node", "table", "row", "key", "event"])
    return [frame[frame["node"] == 1], frame[frame["node"] == 0], frame[frame["node"] == 2]]


SPANS_OF_7 = {
    Span(0, "owned", 0.0, 4.0),
    Span(0, "owned", 9.0, 10.0),
    Span(0, "intent", 0.0, 4.0),
    Span(1, "intent", 1.0, 6.0),
    Span(1, "replica", 2.0, 5.0),
    Span(1, "owned", 5.0, 8.0),
}


def test_events_become_spans() -> None:
    seven, eight = lives(frames())
    assert (seven.key, seven.name) == (7, "emb[2]")
    assert (eight.key, eight.name) == (8, "emb[3]")
    assert len(seven.spans) == len(SPANS_OF_7)
    assert set(seven.spans) == SPANS_OF_7
    # A replica that was there before the first event, and an owner at the end.
    assert set(eight.spans) == {Span(0, "replica", 0.0, 3.0), Span(1, "owned", 10.0, 10.0)}


def test_every_span_is_drawn_where_it_belongs() -> None:
    seven, eight = draw_life_of_keys(frames()).axes
    held = {(span.node, span.begin, span.end) for span in SPANS_OF_7 if span.kind != "intent"}
    assert {(node, begin, end) for node, begin, end, _ in bars(seven)} == held
    assert {(node, begin, end) for node, begin, end, _ in bars(eight)} == {(0, 0.0, 3.0), (1, 10.0, 10.0)}
    colours = {colour for *_, colour in bars(seven)}
    assert len(colours) == 2
    assert {colour for node, begin, _, colour in bars(seven) if (node, begin) != (1, 2.0)} != colours
    assert lines(seven) == {(0, 0.0, 4.0), (1, 1.0, 6.0)}
    assert [tick.get_text() for tick in seven.get_yticklabels()] == ["node 0", "node 1", "node 2"]


def bars(axes: Axes) -> set[tuple[int, float, float, str]]:
    """The bars: node, beginning, end and colour."""
    found = set()
    for bar in axes.patches:
        assert isinstance(bar, Rectangle)
        node = round(bar.get_y() + bar.get_height() / 2)
        found.add((node, bar.get_x(), bar.get_x() + bar.get_width(), to_hex(bar.get_facecolor())))
    return found


def lines(axes: Axes) -> set[tuple[int, float, float]]:
    """The horizontal lines: node, beginning and end."""
    found = set()
    for collection in axes.collections:
        assert isinstance(collection, LineCollection)
        for (left, low), (right, high) in collection.get_segments():
            if low == high:
                found.add((int(low), float(left), float(right)))
    return found


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    draw_life_of_keys(frames()).savefig(tmp_path / "life.png", dpi=160)
    assert (tmp_path / "life.png").read_bytes().startswith(b"\x89PNG")


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="has no event"):
        lives([frames()[2]])


def test_an_unknown_event_is_named() -> None:
    frame = frames()[0].assign(event="evaporated")
    with pytest.raises(ValueError, match="evaporated"):
        lives([frame])
