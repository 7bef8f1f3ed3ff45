"""What a training would cost on a cluster: the server's real code, on simulated machines and links.

Example
-------
>>> import numpy as np
>>> import adaps
>>> table = adaps.Table("emb", rows=100, length=8)
>>> random = np.random.default_rng(0)
>>> steps = [[{"emb": random.choice(100, 5, replace=False)} for _ in range(30)] for _ in range(4)]
>>> streams = [adaps.Stream(own) for own in steps]
>>> found = adaps.simulate(streams, "static", tables=[table])
>>> found.steps, round(found.local_share("emb"), 2)
(120, 0.24)
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaps import _argument_checks, _core
from adaps._core import MESSAGE_BYTES
from adaps._typing import Technique
from adaps.policy import Policy
from adaps.tables import Table, managed_specs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "MESSAGE_BYTES",
    "Cluster",
    "Costs",
    "Incident",
    "LostNode",
    "Machine",
    "NetworkLink",
    "NodeSimulation",
    "Simulation",
    "Stall",
    "Straggler",
    "Stream",
    "simulate",
]

TECHNIQUES = ("adaptive", "replication", "relocation", "static", "full_replication")
_MICROS = 1e6


def _positive(name: str, value: float) -> None:
    if _argument_checks.number(name, value) <= 0:
        raise ValueError(f"{name} is {value!r}; it must be more than 0")


@dataclass(frozen=True)
class Stream:
    """What one worker accesses.

    Parameters
    ----------
    steps : sequence of mapping of str to array
        For each step the rows of each table that it reads and writes, by the table's name; what a step names
        twice is accessed once.
    placed : mapping of str to array
        Rows that begin on the worker's node.
    """

    steps: Sequence[Mapping[str, npt.ArrayLike]]
    placed: Mapping[str, npt.ArrayLike] = field(default_factory=dict)


_COSTS = {
    "call": "a call",
    "wake": "waking",
    "resume": "going on after a wait",
    "key": "a key",
    "value": "a byte of a value",
    "copy": "a key of a copy",
    "elsewhere": "a key elsewhere",
    "intent": "an intent",
    "message": "a message",
    "upkeep": "a message of upkeep",
    "frame": "a frame",
    "byte": "a byte",
}
"""Fields of `Costs`, in the order in which the core takes them."""


@dataclass(frozen=True)
class Costs:
    """CPU time of the server, in microseconds of one core.

    Defaults are rounded from those of the recorded study ``predictions``; ``adabench resources --costs``
    measures this machine's.

    Parameters
    ----------
    call : float
        Of a worker's call, and of each time that a channel's thread looks at what there is.
    wake : float
        Of a thread that goes on after it has waited; 0 where that is part of `frame`.
    resume : float
        Of a step that a worker computes after it has waited: that takes so much longer.
    key : float
        Of a key that a worker reads, writes or announces.
    value : float
        Of a byte of the rows that a worker reads or writes.
    copy, elsewhere : float
        Of such a key, at the worker and beside `key`: if it is that of a copy, which has to note what is
        written for its owner, or another node's, which is asked.
    intent : float
        Of an announced key that a channel acts on, its begin and its end.
    message : float
        Of a question or an answer, at each end.
    upkeep : float
        Of a message that says where a row is to be, moves or copies it, or keeps copies alike, at each end.
    frame, byte : float
        Of a frame, and of a byte of frames, at each end.
    speed : float
        Of the machine where this was measured: on one of half the speed all takes twice as long.
    """

    call: float = 0.2
    wake: float = 10.0
    resume: float = 50.0
    key: float = 0.01
    value: float = 0.00006
    copy: float = 0.02
    elsewhere: float = 0.0
    intent: float = 0.1
    message: float = 0.04
    upkeep: float = 0.03
    frame: float = 0.4
    byte: float = 0.0005
    speed: float = 1.0

    def __post_init__(self) -> None:
        for name in _COSTS:
            _argument_checks.number(f"cost of {_COSTS[name]}", getattr(self, name), low=0.0)
        _positive("speed of the machine of the costs", self.speed)


@dataclass(frozen=True)
class Machine:
    """A node.

    Parameters
    ----------
    cores : int
        That its workers and channels share.
    speed : float
        In the unit of `Costs`'s.
    gbit_per_second : float, optional
        Of its network card, which all its links share, in each direction; without it that of its fastest
        link.
    host : str, optional
        What it stands on: nodes of one host share its cores, and have equal ones. Without it each is alone.
    """

    cores: int = 1
    speed: float = 1.0
    gbit_per_second: float | None = None
    host: str | None = None

    def __post_init__(self) -> None:
        _argument_checks.count("cores of a machine", self.cores)
        _positive("speed of a machine", self.speed)
        if self.gbit_per_second is not None:
            _positive("gbit_per_second of a machine", self.gbit_per_second)


@dataclass(frozen=True)
class NetworkLink:
    """The link between two nodes, alike in both directions.

    Parameters
    ----------
    latency_ms : float
        Of one way, in milliseconds.
    gbit_per_second : float
        What it carries in each direction.
    """

    latency_ms: float = 0.05
    gbit_per_second: float = 10.0

    def __post_init__(self) -> None:
        _argument_checks.number("latency_ms of a line", self.latency_ms, low=0.0)
        _positive("gbit_per_second of a line", self.gbit_per_second)


@dataclass(frozen=True)
class Cluster:
    """Machines and what joins them.

    Parameters
    ----------
    machines : sequence of Machine
        In the order of their ranks.
    line : NetworkLink
        Between any two nodes for which `lines` has no other.
    lines : mapping of (int, int) to NetworkLink
        The exceptions, by the lesser and the greater number of the nodes.
    costs : Costs
        Of the server.
    """

    machines: Sequence[Machine]
    line: NetworkLink = NetworkLink()
    lines: Mapping[tuple[int, int], NetworkLink] = field(default_factory=dict)
    costs: Costs = Costs()

    def __post_init__(self) -> None:
        for one, other in self.lines:
            if not 0 <= one < other < len(self.machines):
                raise ValueError(
                    f"a line between nodes {one} and {other} of {len(self.machines)}: give the lesser first"
                )
        hosts: dict[str, Machine] = {}
        for machine in self.machines:
            if machine.host is None:
                continue
            first = hosts.setdefault(machine.host, machine)
            if (machine.cores, machine.speed) != (first.cores, first.speed):
                raise ValueError(
                    f"nodes of host {machine.host!r} have {first.cores} and {machine.cores} cores of speed "
                    f"{first.speed:g} and {machine.speed:g}: they share them, so give equal ones"
                )

    @classmethod
    def alike(cls, nodes: int, machine: Machine | None = None, line: NetworkLink | None = None) -> Cluster:
        """A cluster of equal nodes and links.

        Parameters
        ----------
        nodes : int
            At least 1.
        machine : Machine, optional
            Each of them; one with two cores.
        line : NetworkLink, optional
            Between any two.
        """
        return cls(
            (machine or Machine(cores=2),) * _argument_checks.count("nodes", nodes), line or NetworkLink()
        )

    def between(self, one: int, other: int) -> NetworkLink:
        """The link between two nodes.

        Parameters
        ----------
        one, other : int
            Their numbers.
        """
        return self.lines.get((min(one, other), max(one, other)), self.line)


@dataclass(frozen=True)
class Straggler:
    """A node that is slower than its machine for some steps.

    Parameters
    ----------
    node : int
        Its rank.
    speed : float
        The part of its machine's speed that is left, above 0.
    begin, end : int
        It begins when the node's first worker has done `begin` steps, and ends when that has done `end`.
    """

    node: int
    speed: float
    begin: int
    end: int

    def __post_init__(self) -> None:
        _argument_checks.whole("begin of a straggler", self.begin, "steps")
        _argument_checks.whole("end of a straggler", self.end, "steps")
        _positive("speed of a straggler", self.speed)
        if self.end <= self.begin:
            raise ValueError(
                f"node {self.node} straggles from step {self.begin} to {self.end}: its end must be later"
            )


@dataclass(frozen=True)
class Stall:
    """A node all of whose threads stand still for a while.

    Parameters
    ----------
    node : int
        Its rank.
    step : int
        It begins when the node's first worker has done so many steps.
    seconds : float
        For how long: less than half of ``peer_timeout``, or others may take the node for a lost one.
    """

    node: int
    step: int
    seconds: float

    def __post_init__(self) -> None:
        _argument_checks.whole("step of a stall", self.step, "steps")
        _argument_checks.seconds("duration of a stall", self.seconds)


@dataclass(frozen=True)
class LostNode:
    """A node whose machine, or cable, is gone for good: it says nothing any more.

    Parameters
    ----------
    node : int
        Its rank.
    step : int
        It is lost when its first worker has done so many steps.
    """

    node: int
    step: int

    def __post_init__(self) -> None:
        _argument_checks.whole("step of a lost node", self.step, "steps")


Incident = Straggler | Stall | LostNode


@dataclass(frozen=True)
class NodeSimulation:
    """What one node did while it was counted.

    Attributes
    ----------
    steps : int
        Of all its workers.
    computing, visiting, waiting : float
        Its workers' seconds: what steps compute; calls that its own share of the server serves; waiting for
        other nodes, in pulls and pushes.
    on_network : float
        Seconds of waiting while a frame to or from this node was under way; the rest of it other nodes, or
        this one's channels, worked.
    working, channels : float
        Seconds of a core that its workers' threads worked, computing and in calls, and its channels'.
    seconds : float
        When its workers had done their last step.
    lost_at : float or None
        When the node was lost, if it was.
    peer_lost : int or None
        The rank of a lost node, if calls of this one raised `PeerLost` that names it; a call that did is no
        part of `waiting`.
    peer_lost_at : float or None
        When they began to.
    counters : dict of str to float
        As `Node.stats` gives them; those of seconds that calls block are 0, as the simulator's never do.
    tables : dict of str to dict of str to float
        As ``node.table(name).stats()`` gives them.
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
        """To all other nodes."""
        return int(self.counters["bytes_sent"])

    @property
    def messages_sent(self) -> int:
        """About rows, to all other nodes."""
        return sum(
            int(count)
            for table in self.tables.values()
            for name, count in table.items()
            if name.startswith("messages_sent_")
        )

    def local_share(self, table: str) -> float:
        """The part of the rows that were read without a message; NaN if none was read.

        Parameters
        ----------
        table : str
            Its name.
        """
        return _local_share([self.tables[table]])

    def shares(self) -> dict[str, float]:
        """Where its workers' time went, as `Simulation.shares` says of all."""
        return _time_shares([self])


@dataclass(frozen=True)
class Simulation:
    """What a training would cost.

    Attributes
    ----------
    seconds : float
        Until the last counted step was done.
    workers : int
        Of a node.
    nodes : tuple of NodeSimulation
        What each did.
    spans : tuple of (str, int, int, int, int, int)
        What threads did and how frames travelled in the traced steps: ``announce``, ``pull``, ``compute``,
        ``push``, ``synchronize``, ``meet``, ``wait``, ``channel`` or ``frame``; the node; its thread,
        channels first, or the node that the frame goes to; keys or bytes; begin and end in microseconds.
    """

    seconds: float
    workers: int
    nodes: tuple[NodeSimulation, ...]
    spans: tuple[tuple[str, int, int, int, int, int], ...] = ()

    @property
    def steps(self) -> int:
        """Of all workers."""
        return sum(node.steps for node in self.nodes)

    @property
    def seconds_per_step(self) -> float:
        """What a step of a worker took, while all others made theirs."""
        return self.seconds * self.workers * len(self.nodes) / max(self.steps, 1)

    @property
    def bytes_per_step(self) -> float:
        """What a node sends per step of a worker."""
        return sum(node.bytes_sent for node in self.nodes) / max(self.steps, 1)

    @property
    def messages_per_step(self) -> float:
        """Messages about rows per step of a worker."""
        return sum(node.messages_sent for node in self.nodes) / max(self.steps, 1)

    def shares(self) -> dict[str, float]:
        """Where workers' time went: parts of their steps, which add up to 1.

        Returns
        -------
        dict of str to float
            ``compute``, ``visits`` of their own node's rows, waiting for ``rows`` that other nodes or this
            one's channels worked at, and for the ``network``.
        """
        return _time_shares(self.nodes)

    def local_share(self, table: str | None = None) -> float:
        """The part of the rows that all nodes read without a message; NaN if none was read.

        Parameters
        ----------
        table : str, optional
            Its name; without it rows of all tables count.
        """
        return _local_share(
            [node.tables[name] for node in self.nodes for name in ([table] if table else node.tables)]
        )

    def write_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write the traced steps as Chrome trace JSON, for chrome://tracing or ui.perfetto.dev.

        A node is a process of the viewer; its channels, its workers and its links to others are the threads.

        Parameters
        ----------
        path : path
            The file to write.
        """
        Path(path).write_text(
            json.dumps({"traceEvents": self._chrome_events(), "displayTimeUnit": "ms"}), encoding="utf-8"
        )

    def _chrome_events(self) -> list[dict[str, Any]]:
        names: dict[tuple[int, int], str] = {}
        events: list[dict[str, Any]] = []
        for kind, node, thread, amount, begin, end in self.spans:
            tid = thread + (1000 if kind == "frame" else 0)
            if kind == "frame":
                names[node, tid] = f"to node {thread}"
            elif kind == "channel":
                names[node, tid] = f"channel {thread}"
            else:
                names[node, tid] = "worker"
            unit = "bytes" if kind in ("frame", "channel") else "keys"
            timing = {"ts": begin, "dur": end - begin}
            events.append(
                {"ph": "X", "name": kind, "pid": node, "tid": tid, **timing, "args": {unit: amount}}
            )
        processes = {(node, 0): f"node {node}" for node, _ in sorted(names)}
        for what, named in (("process_name", processes), ("thread_name", names)):
            events += [
                {"ph": "M", "name": what, "pid": node, "tid": tid, "args": {"name": name}}
                for (node, tid), name in sorted(named.items())
            ]
        return events


def simulate(
    streams: Sequence[Stream],
    policy: Policy | Technique = "adaptive",
    cluster: Cluster | None = None,
    *,
    tables: Sequence[Table],
    dense: Sequence[str] = (),
    compute: float = 0.01,
    lookahead: int | Mapping[str, int] = 20,
    warm_up: int | None = None,
    epoch: int = 0,
    workers: int = 1,
    channels: int = 1,
    timing: bool = True,
    max_rounds_per_second: float = 500.0,
    traced_steps: int = 0,
    incidents: Sequence[Incident] = (),
    peer_timeout: float = 5.0,
    seed: int = 0,
) -> Simulation:
    """Replay what workers access with the server's real code, on simulated machines and links.

    Every worker does what a step of `autoada` does: it announces the batch that is `lookahead` ahead, pulls
    the dense tables, but for its first step, and its rows, table after table, computes, pushes gradients of
    its rows and of dense tables, pulls those again, and advances its clock. Before its first step it asks for
    the dense tables, those of node 0 first, as it leads a real training, too. Equal arguments give equal
    results. Counts and bytes of what does not depend on time, as under ``static``, are those of a real run.

    Parameters
    ----------
    streams : sequence of Stream
        One per worker, node after node.
    policy : Policy or str
        How each table is managed, as for `Node`; or one of its techniques for all.
    cluster : Cluster, optional
        As many machines as there are nodes. Without it equal ones of two cores.
    tables : sequence of Table
        As for `Node`.
    dense : sequence of str
        Names of tables all of whose rows are accessed in every step, and which streams do not name.
    compute : float
        Seconds of a core of the speed of the costs' machine that a step computes for.
    lookahead : int or mapping of str to int
        Batches announced ahead of their use, of all tables or by their names. Dense tables are announced for
        good, unless a mapping has 0 for them.
    warm_up : int, optional
        First steps of every worker, which are not counted; counting then ends with the first worker that has
        nothing more to announce. Without it everything is counted, from the first step, for which the rows
        that were announced are there, until nothing is under way after the last one.
    epoch : int
        Steps of an epoch, 0 for none. Behind each epoch a worker waits until everything that was written is
        visible everywhere, and for all others. Nothing is announced across its end, and the first batches
        are announced when the first step begins.
    workers, channels, timing, max_rounds_per_second
        As for `Node`.
    traced_steps : int
        So many counted steps are kept as `Simulation.spans`.
    incidents : sequence of Straggler, Stall or LostNode
        What befalls nodes. A lost node ends the training of all: their calls raise `PeerLost` when it has
        said nothing for seven eighths of `peer_timeout`, and those of nodes that have no step left do at the
        end.
    peer_timeout : float
        Seconds, as for `Node`.
    seed : int
        Of the moments at which workers begin, and of the order of what happens at the same time.

    Raises
    ------
    PolicyError
        If the policy does not fit the tables or the number of nodes, or has something in it that the server
        does not execute.
    ValueError
        If streams are too few or too short, or name tables or rows that there are not, or incidents are at
        nodes or steps that there are not.
    """
    workers = _argument_checks.count("workers", workers)
    if not streams or len(streams) % workers:
        raise ValueError(f"{len(streams)} streams for nodes of {workers} workers; give one per worker")
    nodes = len(streams) // workers
    if nodes > 4096:
        raise ValueError(f"{nodes} nodes; a cluster has at most 4096")
    cluster = Cluster.alike(nodes) if cluster is None else cluster
    if len(cluster.machines) != nodes:
        raise ValueError(
            f"{len(streams)} streams are those of {nodes} nodes; the cluster has {len(cluster.machines)}"
        )
    names = [table.name for table in tables]
    for name in dense:
        _argument_checks.one_of("dense table", name, names)
    for name in lookahead if isinstance(lookahead, Mapping) else ():
        _argument_checks.one_of("table with a lookahead", name, names)
    technique, specs = _managed(policy, tables, nodes)
    ahead = [_ahead(lookahead, table, table in dense) for table in names]
    prepared = [_prepared(number, stream, tables, dense) for number, stream in enumerate(streams)]
    if warm_up is not None:
        warm_up = _argument_checks.whole("warm_up", warm_up, "steps")
    peer_timeout = _argument_checks.seconds("peer_timeout", peer_timeout)
    happening = _happening(incidents, streams[::workers], peer_timeout)
    costs = cluster.costs
    found = _core.replay(
        specs,
        [name in dense for name in names],
        prepared,
        technique=technique,
        timing=timing,
        max_rounds_per_second=max_rounds_per_second,
        workers=workers,
        channels=_argument_checks.count("channels", channels),
        lookahead=ahead,
        warm_up=warm_up,
        epoch=_argument_checks.whole("epoch", epoch, "steps"),
        compute=_argument_checks.number("compute", compute, low=0.0) * _MICROS,
        costs=tuple(getattr(costs, name) for name in _COSTS),
        machines=_machines(cluster),
        links=[_link(cluster.between(a, b)) for a in range(nodes) for b in range(nodes)],
        seed=seed,
        traced_steps=traced_steps,
        incidents=happening,
        peer_timeout=round(peer_timeout * _MICROS),
    )
    return Simulation(
        found.elapsed / _MICROS,
        workers,
        tuple(_node(node, names) for node in found.nodes),
        tuple(found.spans),
    )


def _managed(
    policy: Policy | Technique, tables: Sequence[Table], nodes: int
) -> tuple[_core.Technique, list[_core.TableSpec]]:
    if isinstance(policy, str):
        technique = _core.Technique[_argument_checks.one_of("technique", policy, TECHNIQUES).upper()]
        return technique, [table.spec() for table in tables]
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is {policy!r}; it must be an adaps.Policy or a technique")
    return _core.Technique.ADAPTIVE, managed_specs(tables, policy, nodes)


def _ahead(lookahead: int | Mapping[str, int], table: str, dense: bool) -> int:
    always = 1 if dense else 0
    if isinstance(lookahead, Mapping):
        return _argument_checks.whole(
            f"lookahead of table {table!r}", lookahead.get(table, always), "batches"
        )
    given = _argument_checks.whole("lookahead", lookahead, "batches")
    return always if dense else given


def _prepared(
    number: int, stream: Stream, tables: Sequence[Table], dense: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Keys where they begin, keys of all steps, and where each step's end."""
    import numpy as np  # not with the package, whose import is to be quick

    first_keys = dict(zip((table.name for table in tables), _first_keys(tables), strict=True))
    rows_of = {table.name: table.rows for table in tables}

    def keys(accessed: Mapping[str, npt.ArrayLike]) -> npt.NDArray[np.int64]:
        found = []
        for name in accessed:
            if name in dense:
                raise ValueError(
                    f"the stream of worker {number} names rows of {name!r}, which is dense: leave it out"
                )
            _argument_checks.one_of(f"table in the stream of worker {number}", name, rows_of)
            rows = np.sort(np.asarray(accessed[name], dtype=np.int64), axis=None)
            rows = rows[np.diff(rows, prepend=-(2**62)) != 0]  # in a third of np.unique's time
            if rows.size and not 0 <= rows[0] <= rows[-1] < rows_of[name]:
                wrong = rows[0] if rows[0] < 0 else rows[-1]
                raise ValueError(
                    f"the stream of worker {number} names row {wrong} of {name!r}, which has {rows_of[name]}"
                )
            found.append((first_keys[name], rows + first_keys[name]))
        ordered = [rows for _, rows in sorted(found, key=lambda one: one[0])]
        return np.concatenate(ordered) if ordered else np.empty(0, dtype=np.int64)

    steps = [keys(step) for step in stream.steps]
    together = np.concatenate(steps) if steps else np.empty(0, dtype=np.int64)
    return keys(stream.placed), together, np.cumsum([len(step) for step in steps], dtype=np.int64)


def _happening(
    incidents: Sequence[Incident], streams: Sequence[Stream], peer_timeout: float
) -> list[tuple[str, int, int, float]]:
    """Incidents as the replay takes them; `streams` are those of each node's first worker."""
    found: list[tuple[str, int, int, float]] = []
    straggling: dict[int, list[Straggler]] = {}
    lost: dict[int, int] = {}
    for incident in incidents:
        node, step = incident.node, incident.begin if isinstance(incident, Straggler) else incident.step
        if not 0 <= _argument_checks.whole("node of an incident", node, "nodes") < len(streams):
            raise ValueError(f"an incident is at node {node}; there are {len(streams)}, from 0 on")
        if step >= len(streams[node].steps):
            raise ValueError(
                f"an incident is at step {step} of node {node}, which has {len(streams[node].steps)}, from 0"
            )
        if isinstance(incident, Straggler):
            for other in straggling.setdefault(node, []):
                if incident.begin < other.end and other.begin < incident.end:
                    raise ValueError(
                        f"node {node} straggles from step {other.begin} to {other.end} and from "
                        f"{incident.begin} to {incident.end}: give steps that do not overlap"
                    )
            straggling[node].append(incident)
            found += [("speed", node, incident.begin, incident.speed), ("speed", node, incident.end, 1.0)]
        elif isinstance(incident, Stall):
            if incident.seconds >= peer_timeout / 2:
                raise ValueError(
                    f"node {node} stalls for {incident.seconds:g} s, and others may take it for lost from "
                    f"{peer_timeout / 2:g} s on, half of peer_timeout: make it shorter, or a LostNode"
                )
            if any(one[:3] == ("stall", node, step) for one in found):
                raise ValueError(f"node {node} stalls twice at step {step}: give one, as long as both")
            found.append(("stall", node, step, incident.seconds * _MICROS))
        else:
            if node in lost:
                raise ValueError(f"node {node} is lost twice, at step {lost[node]} and at {step}: give one")
            lost[node] = step
            found.append(("loss", node, step, 0.0))
    # Where one straggling ends as the next begins, the end comes first.
    return sorted(found, key=lambda one: (one[2], one[0] != "speed" or one[3] != 1.0))


def _first_keys(tables: Sequence[Table]) -> list[int]:
    ends = list(itertools.accumulate(table.rows for table in tables))
    return [0, *ends[:-1]]


def _machines(cluster: Cluster) -> list[tuple[int | None, int, float, float]]:
    nodes = len(cluster.machines)
    machines = []
    first_of: dict[str, int] = {}
    for rank, machine in enumerate(cluster.machines):
        card = machine.gbit_per_second
        if card is None:
            others = [other for other in range(nodes) if other != rank]
            card = max((cluster.between(rank, other).gbit_per_second for other in others), default=1.0)
        host = None if machine.host is None else first_of.setdefault(machine.host, rank)
        speed = machine.speed / cluster.costs.speed
        machines.append((host, machine.cores, speed, _bytes_per_micro(card)))
    return machines


def _link(line: NetworkLink) -> tuple[float, float]:
    return 1e3 * line.latency_ms, _bytes_per_micro(line.gbit_per_second)


def _bytes_per_micro(gbit_per_second: float) -> float:
    return gbit_per_second * 1e9 / 8 / _MICROS


def _node(node: _core.NodeReplay, names: Sequence[str]) -> NodeSimulation:
    return NodeSimulation(
        steps=node.steps,
        computing=node.computing / _MICROS,
        visiting=node.visiting / _MICROS,
        waiting=node.waiting / _MICROS,
        on_network=node.on_network / _MICROS,
        working=node.working / _MICROS,
        channels=node.channels / _MICROS,
        seconds=node.last_step / _MICROS,
        lost_at=None if node.lost is None else node.lost / _MICROS,
        peer_lost=node.peer_lost,
        peer_lost_at=None if node.peer_lost_at is None else node.peer_lost_at / _MICROS,
        counters=node.counters,
        tables=dict(zip(names, node.tables, strict=True)),
    )


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
