"""Simulation of a use case with a backend, on clusters that do not exist."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from adabench.backends.interface import ServerOptions, Simulated, SimulatedRun
from adabench.backends.policies.resources import Link, LinkBetween, Resources
from adabench.harness.errors import UsageError, unknown
from adabench.harness.machine.namespaces import link_of, slow_pair_of
from adabench.harness.plugins.registry import load_backend
from adabench.harness.study.policies import policy_of_usecase
from adabench.harness.study.syntax import check_slow_pair, convert_params, parse_network, parse_selections
from adabench.usecases.interface import UseCase
from adaps.node_options import checked_channels
from adaps.policy import Policy, PolicyError
from adaps.simulation import Cluster as SimulatedCluster
from adaps.simulation import Incident, LostNode, Simulation, Stall, Straggler

_LINKS = {
    "lan": Link(latency_ms=0.25, gbit_per_second=10.0),
    "slow": Link(latency_ms=1.0, gbit_per_second=1.0),
}
_MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_GIGABITS = {"kbit": 1e-6, "mbit": 1e-3, "gbit": 1.0}


class _Slow(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    speed: float
    begin: int = 0
    end: int

    def incident(self) -> Incident:
        return Straggler(self.node, self.speed, self.begin, self.end)


class _Stall(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    step: int
    ms: float

    def incident(self) -> Incident:
        return Stall(self.node, self.step, 1e-3 * self.ms)


class _Lost(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    step: int

    def incident(self) -> Incident:
        return LostNode(self.node, self.step)


_INCIDENTS: dict[str, type[_Slow | _Stall | _Lost]] = {"slow": _Slow, "stall": _Stall, "lost": _Lost}


def incidents_of(text: str, nodes: int) -> tuple[Incident, ...]:
    """Parse ``slow[node=2,speed=0.33,begin=10,end=40],stall[node=1,step=20,ms=50],lost[node=3,step=60]``.

    Parameters
    ----------
    text : str
        Incidents in any order.
    nodes : int
        Number of nodes in the smallest cluster.

    Raises
    ------
    UsageError
        If an incident is impossible.
    """
    found = []
    for selected in parse_selections(text):
        if selected.name not in _INCIDENTS:
            raise unknown("incident", selected.name, _INCIDENTS)
        owner = f"incident {selected.name!r}"
        for name, several in selected.values.items():
            if len(several) != 1:
                raise UsageError(f"parameter {name} of {owner} has {len(several)} values; give one")
        given = {name: several[0] for name, several in selected.values.items()}
        made = convert_params(_INCIDENTS[selected.name], given, owner)
        try:
            found.append(made.incident())
        except ValueError as error:
            raise UsageError(f"--incidents: {error}") from error
        if not 0 <= made.node < nodes:
            raise UsageError(
                f"--incidents: {owner} is at node {made.node}; nodes of {nodes} are 0 to {nodes - 1}"
            )
    return tuple(found)


def channels_of(backend: str) -> int | None:
    """Return the number of channels that a backend's options set; None for the default.

    Parameters
    ----------
    backend : str
        Backend as on the command line.

    Raises
    ------
    UsageError
        If there is no such backend or option, or several backends are given.
    """
    _, options = next(_selected(backend, None))
    return options.channels if isinstance(options, ServerOptions) else None


def clusters_of(
    resources: Resources | None,
    nodes: Sequence[int] | None,
    network: str | None,
    workers: int = 1,
    channels: int | None = None,
) -> list[Resources]:
    """Return the clusters to simulate.

    Parameters
    ----------
    resources : Resources, optional
        Cluster of a file.
    nodes : sequence of int, optional
        Sizes of clusters whose nodes equal the first node of the file, each on a separate host. Without
        sizes, the cluster of the file is used.
    network : str, optional
        Network that replaces the file's links, as for runs.
    workers : int
        Number of workers per node. Without a file, a node has a core for each worker and each channel.
    channels : int, optional
        Number of channels per node, if it is not the default.
    """
    given = resources or Resources.alike(1)
    if resources is None:
        cores = workers + checked_channels(channels, workers)
        given = msgspec.structs.replace(given, node=(msgspec.structs.replace(given.node[0], cores=cores),))
    if network is not None:
        given = msgspec.structs.replace(given, links=_link(network), link=())
    if nodes is not None:
        alone = msgspec.structs.replace(given.node[0], host="")
        clusters = [msgspec.structs.replace(given, node=(alone,) * count, link=()) for count in nodes]
    else:
        clusters = [given]
    return clusters if network is None else [_with_slow_pair(one, network) for one in clusters]


def _with_slow_pair(cluster: Resources, network: str) -> Resources:
    text = parse_network(network)
    _, slow = slow_pair_of(link_of(text) or "")
    if slow is None:
        return cluster
    check_slow_pair(text, len(cluster.node))
    usual = cluster.links
    other = LinkBetween(
        between=(slow.one, slow.other),
        latency_ms=usual.latency_ms * slow.times,
        gbit_per_second=usual.gbit_per_second / slow.times,
    )
    return msgspec.structs.replace(cluster, link=(other,))


def _link(network: str) -> Link:
    text = parse_network(network)
    shape, _ = slow_pair_of(link_of(text) or text)
    if shape in {"loopback", "sockets"}:
        return Link()
    if shape in _LINKS:
        return _LINKS[shape]
    found = re.fullmatch(r"([\d.]+)(us|ms|s),([\d.]+)(kbit|mbit|gbit)", shape)
    assert found is not None, shape
    delay, unit, rate, of = found.groups()
    if float(rate) == 0:
        raise UsageError(f"--network {network}: a link that carries nothing")
    return Link(latency_ms=float(delay) * _MILLISECONDS[unit], gbit_per_second=float(rate) * _GIGABITS[of])


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of a simulation that depend neither on the cluster nor on the policy.

    Attributes
    ----------
    workers, steps, steps_before, epoch, compute, traced_steps, seed, incidents, peer_timeout
        Fields of `SimulatedRun`.
    """

    workers: int
    steps: int
    compute: float
    steps_before: int = 0
    epoch: int = 0
    traced_steps: int = 0
    seed: int = 0
    incidents: tuple[Incident, ...] = ()
    peer_timeout: float = 5.0

    def run(self, cluster: SimulatedCluster, policy: Policy) -> SimulatedRun:
        """Return the simulation of a policy on a cluster."""
        return SimulatedRun(cluster, policy, **{one.name: getattr(self, one.name) for one in fields(self)})


def simulated(
    usecase: UseCase,
    backend: str,
    policy: str | None,
    clusters: Sequence[Resources],
    settings: SimulationSettings,
) -> Iterator[tuple[str, Resources, Simulation]]:
    """Simulate a backend as the command line gives it, under each policy on each cluster.

    Yields
    ------
    tuple of str, Resources and Simulation
        The policy, the cluster, and the result.

    Raises
    ------
    UsageError
        If there is no such backend, it cannot be simulated, or a policy does not fit.
    """
    for name, options in _selected(backend, policy):
        require_server(name)
        for resources in clusters:
            yield options.policy, resources, simulated_once(usecase, name, options, resources, settings)


def simulated_once(
    usecase: UseCase,
    backend: str,
    options: Any,
    resources: Resources,
    settings: SimulationSettings,
    policy: Policy | None = None,
) -> Simulation:
    """Simulate a backend with its options on a cluster.

    Parameters
    ----------
    usecase : UseCase
        Use case to simulate.
    backend : str
        Name of the backend.
    options : Options
        Options of this backend.
    resources : Resources
        The cluster.
    settings : SimulationSettings
        Settings of the simulation.
    policy : Policy, optional
        Replaces the policy of the options.

    Raises
    ------
    UsageError
        If the backend cannot be simulated, or its policy does not fit.
    """
    require_server(backend)
    found = load_backend(backend)()
    assert isinstance(found, Simulated)
    made = policy or policy_of_usecase(options.policy, usecase, resources, settings.workers)
    try:
        return found.simulate(usecase, options, settings.run(resources.cluster(), made))
    except (PolicyError, ValueError) as error:
        raise UsageError(f"backend {backend!r}: {error}") from error


def require_server(backend: str) -> None:
    """Refuse a backend that cannot be simulated.

    Raises
    ------
    UsageError
        If there is no such backend, or it does not use the parameter server.
    """
    kind = load_backend(backend)
    if not isinstance(kind(), Simulated) or not issubclass(kind.Options, ServerOptions):
        raise UsageError(
            f"backend {backend!r} does not use the parameter server: only backends on it are simulated"
        )


def _selected(backend: str, policy: str | None) -> Iterator[tuple[str, Any]]:
    selections = parse_selections(backend)
    if len(selections) != 1:
        raise UsageError(f"--backend {backend}: give one")
    (selected,) = selections
    values = dict(selected.values)
    policies = values.pop("policy", [None])
    if policy is not None:
        if policies != [None]:
            raise UsageError(f"--policy {policy}: the backend {backend} has one already; leave one out")
        policies = parse_selections(f"{selected.name}[policy={policy}]")[0].values["policy"]
    if any(len(several) != 1 for several in values.values()):
        raise UsageError(f"--backend {backend}: give one value for each option but policy")
    options = load_backend(selected.name).Options
    for one in policies:
        given = {name: several[0] for name, several in values.items()}
        given |= {} if one is None else {"policy": one}
        yield selected.name, convert_params(options, given, f"backend {selected.name!r}")
