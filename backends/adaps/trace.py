"""Events of traced keys, as a pandas frame and in the format of Chrome's trace viewer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaps.spans import spans_of

if TYPE_CHECKING:
    import pandas as pd

    from adaps._core import TraceEvent
    from adaps.node import Node

__all__ = ["trace_frame", "write_chrome_trace"]


def trace_frame(node: Node) -> pd.DataFrame:
    """Events of the traced keys of one node.

    Parameters
    ----------
    node : Node
        Node, open or closed.

    Returns
    -------
    pandas.DataFrame
        One row per event in the order of time: `time` (microseconds of the machine's monotonic clock), `node`
        (rank), `table`, `row`, `key`, `event`.
    """
    import pandas as pd

    rows = []
    for event in node.trace_events():
        table = next(t for t in node.tables if 0 <= event.key - t.first_key < t.rows)
        rows.append((event.time, node.rank, table.name, event.key - table.first_key, event.key, event.kind))
    frame = pd.DataFrame(rows, columns=["time", "node", "table", "row", "key", "event"])
    return frame.astype({"time": "int64", "node": "int64", "row": "int64", "key": "int64"})


def write_chrome_trace(node: Node, path: str | PathLike[str]) -> None:
    """Write the traced keys' events on this node as JSON for chrome://tracing or ui.perfetto.dev.

    A node is a process in the viewer, and a key is a thread with spans `owned`, `replica` and `intent`. Files
    from several nodes on one machine can be combined, because they use the same clock.

    Parameters
    ----------
    node : Node
        Node, open or closed.
    path : path
        File to write.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": node.rank, "args": {"name": f"node {node.rank}"}}
    ]
    events.extend(_spans(node.trace_events(), node.rank))
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def _spans(events: Iterable[TraceEvent], rank: int) -> Iterable[dict[str, Any]]:
    """Yield the spans of each key."""
    ordered = sorted(events, key=lambda event: event.time)
    of_keys: dict[int, list[tuple[int, str]]] = {}
    for event in ordered:
        of_keys.setdefault(event.key, []).append((event.time, event.kind))
    for key, of_key in of_keys.items():
        for name, begin, end in spans_of(of_key, ordered[0].time, ordered[-1].time):
            span = {"name": name, "cat": "key", "pid": rank, "tid": key, "ts": begin, "dur": end - begin}
            yield {"ph": "X", **span}
