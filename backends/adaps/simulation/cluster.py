"""Simulated machines, and links between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adaps import _argument_checks
from adaps.simulation.costs import Costs

__all__ = ["Cluster", "Machine", "NetworkLink", "links_of", "machines_of"]

_BYTES_PER_MICRO = 1e9 / 8 / 1e6
"""Bytes per microsecond of 1 Gbit/s."""


@dataclass(frozen=True)
class Machine:
    """The machine of a node.

    Parameters
    ----------
    cores : int
        Number of cores, which its workers and channels share.
    speed : float
        Speed of a core, relative to the machine of the `Costs`.
    gbit_per_second : float, optional
        Bandwidth of its network card in each direction, which all its links share. Default: the bandwidth of
        its fastest link.
    host : str, optional
        Name of its host. Nodes on one host share its cores, so they must have equal numbers of cores. Without
        a name, each node has a separate host.
    """

    cores: int = 1
    speed: float = 1.0
    gbit_per_second: float | None = None
    host: str | None = None

    def __post_init__(self) -> None:
        _argument_checks.count("cores of a machine", self.cores)
        _argument_checks.positive("speed of a machine", self.speed)
        if self.gbit_per_second is not None:
            _argument_checks.positive("gbit_per_second of a machine", self.gbit_per_second)


@dataclass(frozen=True)
class NetworkLink:
    """The link between two nodes, equal in both directions.

    Parameters
    ----------
    latency_ms : float
        Latency in one direction, in milliseconds.
    gbit_per_second : float
        Bandwidth in each direction.
    """

    latency_ms: float = 0.05
    gbit_per_second: float = 10.0

    def __post_init__(self) -> None:
        _argument_checks.number("latency_ms of a link", self.latency_ms, low=0.0)
        _argument_checks.positive("gbit_per_second of a link", self.gbit_per_second)


@dataclass(frozen=True)
class Cluster:
    """Machines and the links that connect them.

    Parameters
    ----------
    machines : sequence of Machine
        Machines in the order of their ranks.
    line : NetworkLink
        Link between any two nodes that have no entry in `lines`.
    lines : mapping of (int, int) to NetworkLink
        Other links, by the smaller and the larger rank of the two nodes.
    costs : Costs
        Processor time of the server's operations.
    """

    machines: Sequence[Machine]
    line: NetworkLink = NetworkLink()
    lines: Mapping[tuple[int, int], NetworkLink] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        for one, other in self.lines:
            if not 0 <= one < other < len(self.machines):
                raise ValueError(
                    f"a link between nodes {one} and {other} of {len(self.machines)}: give the lesser first"
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
        """Return a cluster of equal nodes and links.

        Parameters
        ----------
        nodes : int
            Number of nodes, at least 1.
        machine : Machine, optional
            Machine of each node. Default: a machine with two cores.
        line : NetworkLink, optional
            Link between any two nodes.
        """
        machines = (machine or Machine(cores=2),) * _argument_checks.count("nodes", nodes)
        return cls(machines, line or NetworkLink())

    def between(self, one: int, other: int) -> NetworkLink:
        """Return the link between two nodes.

        Parameters
        ----------
        one, other : int
            Ranks of the nodes.
        """
        return self.lines.get((min(one, other), max(one, other)), self.line)


def machines_of(cluster: Cluster) -> list[tuple[int | None, int, float, float]]:
    """Return machines for the core: first node of the host, cores, speed, bytes per microsecond."""
    nodes = range(len(cluster.machines))
    first_of: dict[str, int] = {}
    machines = []
    for rank, machine in enumerate(cluster.machines):
        card = machine.gbit_per_second
        if card is None:
            links = (cluster.between(rank, other).gbit_per_second for other in nodes if other != rank)
            card = max(links, default=1.0)
        host = None if machine.host is None else first_of.setdefault(machine.host, rank)
        speed = machine.speed / cluster.costs.speed
        machines.append((host, machine.cores, speed, card * _BYTES_PER_MICRO))
    return machines


def links_of(cluster: Cluster) -> list[tuple[float, float]]:
    """Return links from each node to each for the core: microseconds, and bytes per microsecond."""
    nodes = range(len(cluster.machines))
    links = (cluster.between(one, other) for one in nodes for other in nodes)
    return [(1e3 * link.latency_ms, link.gbit_per_second * _BYTES_PER_MICRO) for link in links]
