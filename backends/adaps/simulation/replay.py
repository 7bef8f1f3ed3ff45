"""Replays the accesses of workers with the server's real code, on a simulated cluster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from adaps import _argument_checks, _core
from adaps._typing import Technique
from adaps.age_limit import request_steps
from adaps.node_options import TECHNIQUES, checked_channels
from adaps.policy import Policy, PolicyError
from adaps.simulation.cluster import Cluster, links_of, machines_of
from adaps.simulation.incidents import Incident, events_of
from adaps.simulation.result import NodeSimulation, Simulation
from adaps.simulation.streams import Stream, keys_of
from adaps.tables import Table, managed_specs

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SimulationOptions", "simulate"]

_MICROS = 1e6


class SimulationOptions(TypedDict, total=False):
    """The keyword arguments of `simulate`. All have a default.

    Attributes
    ----------
    dense : sequence of str
        Names of tables whose rows are all accessed in every step. Streams do not contain them.
    compute : float
        Computing time of a step, in seconds on a core of the machine where the costs were measured, 0.01 by
        default.
    lookahead : int or mapping of str to int
        Number of batches for which intent is signalled in advance, for all tables or by their names, 20 by
        default. Intent for dense tables is signalled once, for all steps, unless a mapping has 0 for them.
    warm_up : int or None
        Number of first steps of every worker that are not counted. Counting then ends when the first worker
        has signalled intent for its last batch. With None, all steps are counted: from the first step, whose
        rows have already arrived, until no frame is on the network after the last step.
    epoch : int
        Number of steps of an epoch; 0, the default, for no epochs. After each epoch, a worker waits until all
        writes are visible everywhere, and then for all other workers. Intent for the batches of an epoch is
        not signalled before the epoch begins.
    steps_before : int
        Number of steps of the training before the simulated ones, 0 by default. In `autoada`, copies may be
        the older the more steps a training has made.
    workers, channels, timing, max_rounds_per_second
        Options as in `NodeOptions`.
    traced_steps : int
        Number of counted steps that are recorded in `Simulation.spans`, 0 by default.
    incidents : sequence of Straggler, Stall or LostNode
        Incidents of nodes. A lost node ends the training of all nodes. Their calls raise `PeerLost` when the
        node has sent nothing for seven eighths of `peer_timeout`. Calls of nodes that have no step left raise
        it at the end.
    peer_timeout : float
        Timeout in seconds, as in `NodeOptions`.
    seed : int
        Seed for the times when workers start, and for the order of simultaneous events.
    """

    dense: Sequence[str]
    compute: float
    lookahead: int | Mapping[str, int]
    warm_up: int | None
    epoch: int
    steps_before: int
    workers: int
    channels: int | None
    timing: bool
    max_rounds_per_second: float
    traced_steps: int
    incidents: Sequence[Incident]
    peer_timeout: float
    seed: int


def simulate(
    streams: Sequence[Stream],
    policy: Policy | Technique = "adaptive",
    cluster: Cluster | None = None,
    *,
    tables: Sequence[Table],
    **options: Unpack[SimulationOptions],
) -> Simulation:
    """Replay the accesses of workers with the server's real code, on simulated machines and links.

    Every worker repeats the steps of `autoada`. It signals intent for the batch `lookahead` steps on, pulls
    the dense tables, except in its first step, and its rows, table after table. Then it computes, pushes the
    gradients of its rows and of dense tables, pulls the dense tables again, limits the age of values, and
    advances its clock. Before its first step, it pulls the dense tables, first on node 0, as in a real
    training. Equal arguments give equal results. Counts and bytes that do not depend on time, for example
    with ``static``, equal the counts and bytes of a real run.

    Parameters
    ----------
    streams : sequence of Stream
        One stream per worker, sorted by node.
    policy : Policy or str
        Management of each table, as for `Node`, or a technique for all tables.
    cluster : Cluster, optional
        Cluster with one machine per node. Default: equal machines with two cores.
    tables : sequence of Table
        Tables, as for `Node`.
    **options : SimulationOptions
        All other arguments, as keywords. `SimulationOptions` describes them and their defaults.

    Raises
    ------
    PolicyError
        If the policy does not fit the tables or the number of nodes, or contains a setting that the server
        does not execute.
    ValueError
        If streams are missing or too short, if streams or incidents refer to tables, rows, nodes or steps
        that do not exist, or if a table has ids as keys.
    """
    _argument_checks.known_options("simulate", options, SimulationOptions)
    workers = _argument_checks.count("workers", options.get("workers", 1))
    nodes = _count_nodes(len(streams), workers)
    cluster = Cluster.alike(nodes) if cluster is None else cluster
    if len(cluster.machines) != nodes:
        raise ValueError(
            f"{len(streams)} streams are those of {nodes} nodes; the cluster has {len(cluster.machines)}"
        )
    for table in tables:
        if table.keys is not None:
            raise ValueError(
                f"the table {table.name!r} has ids as keys, and streams contain rows; "
                "give simulate a table with as many rows"
            )
        if table.memory is not None:
            raise ValueError(
                f"the table {table.name!r} has memory={table.memory}, and a simulation has no disks; "
                "give simulate a table without memory"
            )
    names = [table.name for table in tables]
    dense = options.get("dense", ())
    for name in dense:
        _argument_checks.one_of("dense table", name, names)
    ahead = _lookaheads(options.get("lookahead", 20), names, dense)
    technique, specs = _managed(policy, tables, nodes)
    keys = [keys_of(number, stream, tables, dense) for number, stream in enumerate(streams)]
    warm_up = options.get("warm_up")
    if warm_up is not None:
        warm_up = _argument_checks.whole("warm_up", warm_up, "steps")
    begin = _argument_checks.whole("steps_before", options.get("steps_before", 0), "steps")
    end = begin + max(len(stream.steps) for stream in streams)
    requests = itertools.takewhile(lambda step: step <= end, request_steps(None))
    peer_timeout = _argument_checks.seconds("peer_timeout", options.get("peer_timeout", 5.0))
    found = _core.replay(
        specs,
        [name in dense for name in names],
        keys,
        technique=technique,
        timing=options.get("timing", True),
        max_rounds_per_second=options.get("max_rounds_per_second", 500.0),
        workers=workers,
        channels=checked_channels(options.get("channels"), workers),
        lookahead=ahead,
        warm_up=warm_up,
        epoch=_argument_checks.whole("epoch", options.get("epoch", 0), "steps"),
        requests=[step - begin for step in requests if step > begin],
        compute=_argument_checks.number("compute", options.get("compute", 0.01), low=0.0) * _MICROS,
        costs=cluster.costs.in_order(),
        machines=machines_of(cluster),
        links=links_of(cluster),
        seed=options.get("seed", 0),
        traced_steps=options.get("traced_steps", 0),
        incidents=events_of(options.get("incidents", ()), streams[::workers], peer_timeout),
        peer_timeout=round(peer_timeout * _MICROS),
    )
    per_node = tuple(_node(node, names) for node in found.nodes)
    return Simulation(found.elapsed / _MICROS, workers, per_node, tuple(found.spans))


def _count_nodes(streams: int, workers: int) -> int:
    if not streams or streams % workers:
        raise ValueError(f"{streams} streams for nodes of {workers} workers; give one per worker")
    nodes = streams // workers
    if nodes > 4096:
        raise ValueError(f"{nodes} nodes; a cluster has at most 4096")
    return nodes


def _managed(
    policy: Policy | Technique, tables: Sequence[Table], nodes: int
) -> tuple[_core.Technique, list[_core.TableSpec]]:
    if isinstance(policy, str):
        technique = _core.Technique[_argument_checks.one_of("technique", policy, TECHNIQUES).upper()]
        return technique, [table.spec() for table in tables]
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is {policy!r}; it must be an adaps.Policy or a technique")
    if any(rule.memory is not None for rule in policy.rules):
        raise PolicyError(f"{policy.source}: a simulation has no disks; leave memory out of the policy")
    return _core.Technique.ADAPTIVE, managed_specs(tables, policy, nodes)


def _lookaheads(lookahead: int | Mapping[str, int], names: Sequence[str], dense: Sequence[str]) -> list[int]:
    """Return the lookahead of each table; with 1, intent for a dense table is signalled for all steps."""
    always = {name: 1 if name in dense else 0 for name in names}
    if not isinstance(lookahead, Mapping):
        given = _argument_checks.whole("lookahead", lookahead, "batches")
        return [always[name] or given for name in names]
    for name in lookahead:
        _argument_checks.one_of("table with a lookahead", name, names)
    return [
        _argument_checks.whole(f"lookahead of table {name!r}", lookahead.get(name, always[name]), "batches")
        for name in names
    ]


def _node(node: _core.NodeReplay, names: Sequence[str]) -> NodeSimulation:
    return NodeSimulation(
        steps=node.steps,
        computing=node.computing / _MICROS,
        visiting=node.visiting / _MICROS,
        waiting=node.waiting / _MICROS,
        on_network=node.on_network / _MICROS,
        working=node.working / _MICROS,
        channels=node.counters["channel_micros"] / _MICROS,
        seconds=node.last_step / _MICROS,
        lost_at=None if node.lost is None else node.lost / _MICROS,
        peer_lost=node.peer_lost,
        peer_lost_at=None if node.peer_lost_at is None else node.peer_lost_at / _MICROS,
        counters=node.counters,
        tables=dict(zip(names, node.tables, strict=True)),
    )
