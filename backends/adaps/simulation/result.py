"""The result of a simulation: time, counters and traced spans of each node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = ["NodeSimulation", "Simulation"]


@dataclass(frozen=True)
class NodeSimulation:
    """The activity of one node during the counted steps.

    Attributes
    ----------
    steps : int
        Number of steps of all its workers.
    computing, visiting, waiting : float
        Time of its workers, in seconds: computing steps, calls that run on this node, and waiting for other
        nodes in pulls and pushes.
    on_network : float
        Time of waiting, in seconds, during which a frame to or from this node was on the network. In the rest
        of the waiting time, other nodes or this node's channels worked.
    working, channels : float
        Processor time, in seconds, of its workers' threads, in computing and in calls, and of its channels'
        threads.
    seconds : float
        Time when its workers completed their last step.
    lost_at : float or None
        Time when the node was lost; None if it was not.
    peer_lost : int or None
        Rank of a lost node, if calls of this node raised `PeerLost` for it. Such calls are not included in
        `waiting`.
    peer_lost_at : float or None
        Time when its calls began to raise `PeerLost`.
    counters : dict of str to float
        Counters, as `Node.stats` returns them. Counters of blocked time are 0, because the simulator's calls
        never block.
    tables : dict of str to dict of str to float
        Counters of each table, as ``node.table(name).stats()`` returns them.
    """

    steps: int
    computing: float
    visiting: float
    waiting: float
    on_network: float
    working: float
    channels: float
    seconds: float
    lost_at: float | None
    peer_lost: int | None
    peer_lost_at: float | None
    counters: dict[str, float]
    tables: dict[str, dict[str, float]]

    @property
    def bytes_sent(self) -> int:
        """Number of bytes sent to all other nodes."""
        return int(self.counters["bytes_sent"])

    @property
    def messages_sent(self) -> int:
        """Number of messages about rows that were sent to all other nodes."""
        return sum(
            int(count)
            for table in self.tables.values()
            for name, count in table.items()
            if name.startswith("messages_sent_")
        )

    def local_share(self, table: str) -> float:
        """Return the fraction of rows that were read without a message; NaN if none were read.

        Parameters
        ----------
        table : str
            Name of the table.
        """
        return _local_share([self.tables[table]])

    def shares(self) -> dict[str, float]:
        """Return the fractions of its workers' time, named as in `Simulation.shares`."""
        return _time_shares([self])


@dataclass(frozen=True)
class Simulation:
    """The result of `simulate`.

    Attributes
    ----------
    seconds : float
        Time until the last counted step was completed.
    workers : int
        Number of workers per node.
    nodes : tuple of NodeSimulation
        Activity of each node.
    spans : tuple of (str, int, int, int, int, int)
        Activities of threads, and frames, in the traced steps. A span consists of the kind (``announce``,
        ``pull``, ``compute``, ``push``, ``request``, ``synchronize``, ``meet``, ``wait``, ``channel`` or
        ``frame``), the node, its thread, with channels first, or the receiving node of a frame, the number of
        keys or bytes, and begin and end in microseconds.
    """

    seconds: float
    workers: int
    nodes: tuple[NodeSimulation, ...]
    spans: tuple[tuple[str, int, int, int, int, int], ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps of all workers."""
        return sum(node.steps for node in self.nodes)

    @property
    def seconds_per_step(self) -> float:
        """Seconds per step of a worker, while all other workers also made a step."""
        return self.seconds * self.workers * len(self.nodes) / max(self.steps, 1)

    @property
    def bytes_per_step(self) -> float:
        """Number of bytes that a node sends per step of a worker."""
        return sum(node.bytes_sent for node in self.nodes) / max(self.steps, 1)

    @property
    def messages_per_step(self) -> float:
        """Number of messages about rows per step of a worker."""
        return sum(node.messages_sent for node in self.nodes) / max(self.steps, 1)

    def shares(self) -> dict[str, float]:
        """Return the fractions of the time of workers' steps, which add up to 1.

        Returns
        -------
        dict of str to float
            Fraction of each activity: ``compute``, ``visits`` to rows on the worker's own node, waiting for
            ``rows`` while other nodes or this node's channels work, and waiting for the ``network``.
        """
        return _time_shares(self.nodes)

    def local_share(self, table: str | None = None) -> float:
        """Return the fraction of rows that all nodes read without a message; NaN if none were read.

        Parameters
        ----------
        table : str, optional
            Name of the table. By default, rows of all tables are counted.
        """
        return _local_share(
            [node.tables[name] for node in self.nodes for name in ([table] if table else node.tables)]
        )

    def write_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write the traced steps as Chrome trace JSON, for chrome://tracing or ui.perfetto.dev.

        A node is a process in the viewer. Its channels, its workers and its links to other nodes are threads.

        Parameters
        ----------
        path : path
            File to write.
        """
        document = {"traceEvents": self._chrome_events(), "displayTimeUnit": "ms"}
        Path(path).write_text(json.dumps(document), encoding="utf-8")

    def _chrome_events(self) -> list[dict[str, Any]]:
        names: dict[tuple[int, int], str] = {}
        events: list[dict[str, Any]] = []
        for kind, node, thread, amount, begin, end in self.spans:
            tid = thread + (1000 if kind == "frame" else 0)
            titles = {"frame": f"to node {thread}", "channel": f"channel {thread}"}
            names[node, tid] = titles.get(kind, "worker")
            args = {"bytes" if kind in titles else "keys": amount}
            timing = {"ts": begin, "dur": end - begin}
            events.append({"ph": "X", "name": kind, "pid": node, "tid": tid, **timing, "args": args})
        processes = {(node, 0): f"node {node}" for node, _ in sorted(names)}
        for kind, named in (("process_name", processes), ("thread_name", names)):
            events += [
                {"ph": "M", "name": kind, "pid": node, "tid": tid, "args": {"name": name}}
                for (node, tid), name in sorted(named.items())
            ]
        return events


def _time_shares(nodes: Sequence[NodeSimulation]) -> dict[str, float]:
    sums = {
        "compute": sum(node.computing for node in nodes),
        "visits": sum(node.visiting for node in nodes),
        "rows": sum(node.waiting - node.on_network for node in nodes),
        "network": sum(node.on_network for node in nodes),
    }
    total = sum(sums.values())
    return {name: seconds / total if total > 0 else 0.0 for name, seconds in sums.items()}


def _local_share(tables: Sequence[Mapping[str, float]]) -> float:
    local, replica, remote = (
        sum(table[f"pulled_{how}"] for table in tables) for how in ("local", "replica", "remote")
    )
    pulled = local + replica + remote
    return (local + replica) / pulled if pulled else float("nan")
