"""Conversion of traces to a data frame and to spans for Chrome's viewer."""

import json
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import adaps

Event = namedtuple("Event", "time key kind")


def test_the_first_access_of_a_traced_key_is_recorded() -> None:
    with adaps.Node([adaps.Table("emb", 10, 4), adaps.Table("wide", 10, 1)]) as node:
        node.trace([3, 12])
        kv = node.worker(0)
        kv.push(np.arange(20), np.ones(50, dtype=np.float32))
        kv.wait_sync()
        live = adaps.trace_frame(node)
    frame = adaps.trace_frame(node)
    assert live.equals(frame)
    assert set(frame["key"]) <= {3, 12}
    rows = frame[frame["event"] == "alloc"].sort_values("key")
    assert rows[["node", "table", "row", "key"]].to_numpy().tolist() == [[0, "emb", 3, 3], [0, "wide", 2, 12]]


def test_a_key_that_is_here_already_is_told_at_once() -> None:
    with adaps.Node([adaps.Table("emb", 10, 4)]) as node:
        node.worker(0).push([3], np.ones(4, dtype=np.float32))
        node.trace([3, 4])
        frame = adaps.trace_frame(node)
    assert frame[["key", "event"]].to_numpy().tolist() == [[3, "alloc"]]


def test_an_empty_trace_has_the_same_columns() -> None:
    with adaps.Node([adaps.Table("emb", 10, 4)]) as node:
        frame = adaps.trace_frame(node)
    assert list(frame.columns) == ["time", "node", "table", "row", "key", "event"]
    assert frame.empty


def chrome_spans(path: Path, events: list[Event]) -> list[tuple[Any, ...]]:
    node: Any = SimpleNamespace(rank=2, trace_events=lambda: events)
    adaps.write_chrome_trace(node, path)
    content = json.loads(path.read_text())["traceEvents"]
    assert content[0]["args"]["name"] == "node 2"
    spans = [event for event in content if event["ph"] == "X"]
    assert all(span["pid"] == 2 for span in spans)
    return [(span["name"], span["tid"], span["ts"], span["dur"]) for span in spans]


def test_spans_join_beginnings_and_ends_of_each_key(tmp_path: Path) -> None:
    events = [
        Event(10, 1, "intent_start"),
        Event(20, 1, "replica_set_up"),
        Event(25, 2, "relocated_here"),
        Event(30, 1, "replica_dropped"),
        Event(35, 1, "intent_stop"),
        Event(60, 2, "relocated_away"),
    ]
    assert chrome_spans(tmp_path / "trace.json", events) == [
        ("replica", 1, 20, 10),
        ("intent", 1, 10, 25),
        ("owned", 2, 25, 35),
    ]


def test_spans_without_beginning_or_end_reach_to_the_first_and_last_event(tmp_path: Path) -> None:
    events = [Event(10, 1, "relocated_away"), Event(20, 2, "alloc"), Event(50, 1, "intent_start")]
    assert chrome_spans(tmp_path / "trace.json", events) == [
        ("owned", 1, 10, 0),
        ("intent", 1, 50, 0),
        ("owned", 2, 20, 30),
    ]
    assert chrome_spans(tmp_path / "trace.json", []) == []


def test_a_replica_ends_when_its_node_becomes_the_owner_and_a_retired_row_stays_owned(tmp_path: Path) -> None:
    events = [
        Event(10, 1, "replica_set_up"),
        Event(20, 1, "relocated_here"),
        Event(30, 1, "retired"),
        Event(50, 1, "relocated_away"),
        Event(60, 1, "relocated_away"),
        Event(90, 2, "alloc"),
    ]
    assert chrome_spans(tmp_path / "trace.json", events) == [
        ("replica", 1, 10, 10),
        ("owned", 1, 20, 30),
        ("owned", 2, 90, 0),
    ]
