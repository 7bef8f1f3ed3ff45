"""The life of keys: where each was owned and replicated, and when nodes had intent, drawn from traces."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from adabench.results.record import Run
from adabench.results.store import SessionStore
from adaps.spans import spans_of

_OWNED, _REPLICA = sns.color_palette("pastel")[0], sns.color_palette("pastel")[1]
_BAR_HEIGHT = 0.56
_TICK_HEIGHT = 0.22


class Span(NamedTuple):
    """A period of time when a node owned a key, held a replica of it or had intent for it."""

    node: int
    kind: str
    """One of owned, replica and intent."""
    begin: float
    """Milliseconds since the first event."""
    end: float


class Life(NamedTuple):
    """Life of one key."""

    key: int
    name: str
    spans: tuple[Span, ...]


def lives(frames: Sequence[pd.DataFrame]) -> list[Life]:
    """Join the events of all nodes to spans.

    Parameters
    ----------
    frames : sequence of pandas.DataFrame
        Results of `adaps.trace_frame`, one for each node. Nodes must share a clock, for example on one
        machine.

    Returns
    -------
    list of Life
        Lives in the order of keys. A span without a recorded beginning starts at the first event of all keys,
        and a span without a recorded end ends at the last event. A replica ends when its node becomes the
        owner.

    Raises
    ------
    ValueError
        If the frames hold no event, or one of an unknown kind.
    """
    events = pd.concat([frame for frame in frames if not frame.empty] or [pd.DataFrame()])
    if events.empty:
        raise ValueError("the trace has no event: call node.trace(keys) before the keys are used")
    first = int(events["time"].min())
    events = events.assign(time=(events["time"] - first) / 1000.0).sort_values("time", kind="stable")
    end = float(events["time"].max())
    found = []
    for key in sorted(events["key"].unique().tolist()):
        of_key = events[events["key"] == key]
        table, row = of_key.iloc[0][["table", "row"]]
        nodes = sorted(of_key["node"].unique().tolist())
        spans = []
        for node in nodes:
            here = of_key[of_key["node"] == node]
            joined = spans_of(zip(here["time"], here["event"], strict=True), 0.0, end)
            spans += [Span(node, *span) for span in joined]
        found.append(Life(key, f"{table}[{row}]", tuple(sorted(spans))))
    return found


def draw_life_of_keys(frames: Sequence[pd.DataFrame]) -> Figure:
    """Draw each key over time × node: bars show where it was held, lines between ticks show intent.

    Parameters and errors are as in `lives`.
    """
    all_lives = lives(frames)
    nodes = max(
        max((int(frame["node"].max()) for frame in frames if not frame.empty), default=0) + 1, len(frames)
    )
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(9.0, 1.2 + len(all_lives) * (0.35 + 0.32 * nodes)), layout="constrained")
        for axes, life in zip(
            figure.subplots(len(all_lives), sharex=True, squeeze=False)[:, 0], all_lives, strict=True
        ):
            _draw(axes, life, nodes)
        axes.set_xlabel("time (ms)")
        figure.legend(
            handles=[
                Patch(facecolor=_OWNED, label="owned"),
                Patch(facecolor=_REPLICA, label="replica"),
                Line2D([], [], color="black", label="intent, with its beginning and end"),
            ],
            loc="outside upper center",
            ncols=3,
            frameon=False,
        )
        sns.despine(figure, left=True)
    return figure


def draw_life_of_run(store: SessionStore, run: Run) -> Figure:
    """Draw the trace that was recorded of a run; see `traced_runs`."""
    events = pd.read_csv(store.trace_file(run.run_id))
    return draw_life_of_keys([events[events["node"] == node] for node in range(run.nodes)])


def _draw(axes: Axes, life: Life, nodes: int) -> None:
    for span in life.spans:
        if span.kind == "intent":
            height = span.node + _BAR_HEIGHT / 2
            axes.hlines(height, span.begin, span.end, color="black", linewidth=1.0, zorder=4)
            low, high = height - _TICK_HEIGHT / 2, height + _TICK_HEIGHT / 2
            axes.vlines([span.begin, span.end], low, high, color="black", linewidth=1.0, zorder=4)
        else:
            colour = _OWNED if span.kind == "owned" else _REPLICA
            width = span.end - span.begin
            axes.barh(
                span.node, width, _BAR_HEIGHT, span.begin, color=colour, zorder=2 + (span.kind == "owned")
            )
    axes.set_yticks(range(nodes), [f"node {node}" for node in range(nodes)])
    axes.set_ylim(nodes - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_title(f"key {life.key}: {life.name}", fontsize=10, loc="left")
