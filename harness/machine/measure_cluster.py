"""Measures the nodes of a cluster and the links between them.

Under torchrun each rank is a node: all compute at the same time, then one pair of nodes after the other
measures its link. Without torchrun this machine is all nodes, joined by its loopback device or by links
between namespaces.
"""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil

from adabench.backends.policies.resources import Link, LinkBetween, Node, Resources
from adabench.harness.machine.link_probe import Probe, answer, ask, probe_between, probe_link
from adabench.harness.machine.namespaces import NodeLinks

ALIKE = 0.1
"""Maximum relative difference of a link's latency and bandwidth from the medians, for a typical link."""
_SECONDS = 1.0
_SIZE = 256
_PATIENCE_SECONDS = 60.0
_HERE = "here"
"""Name of the host of all nodes, where they share this machine."""


def under_torchrun() -> bool:
    """Whether this process is one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def measure_ranks() -> Resources | None:
    """Collective, under torchrun: the resources, on rank 0; None elsewhere."""
    from torch import distributed

    distributed.init_process_group("gloo")
    try:
        return _measured_by_rank(distributed)
    finally:
        distributed.destroy_process_group()


def measure_here(nodes: int, link: str | None) -> Resources:
    """Measure this machine as a cluster of nodes.

    Parameters
    ----------
    nodes : int
        Number of nodes, at least 1.
    link : str, optional
        Links between network namespaces, such as ``lan`` or ``0.5ms,2gbit``; None for the loopback device.

    Raises
    ------
    NamespacesUnavailable
        If there can be no network namespaces.
    """
    node = measured_node("127.0.0.1")
    if nodes > 1:
        node = msgspec.structs.replace(node, host=_HERE)
    pairs = [(one, other) for one in range(nodes) for other in range(one + 1, nodes)]
    if link is None or not pairs:
        probe = _loopback() if pairs else None
        return resources_of([node] * nodes, {} if probe is None else dict.fromkeys(pairs, probe))
    with NodeLinks(link, nodes) as links:
        found = {pair: probe_link(links.namespaces, *pair) for pair in pairs}
    return resources_of([node] * nodes, found)


def measured_node(address: str) -> Node:
    """Measure the part of the local machine that this process may use. Takes one second."""
    return Node(
        address=address, cores=_cores(), speed=_speed(), memory=_memory(), accelerators=_accelerators()
    )


def resources_of(nodes: Sequence[Node], probes: dict[tuple[int, int], Probe]) -> Resources:
    """Return nodes with the median of the links as the default, and with different links as exceptions."""
    if not probes:
        return Resources(node=tuple(nodes))
    latency = median(probe.round_trip_ms for probe in probes.values()) / 2
    rate = median(probe.gbit_per_second for probe in probes.values())
    exceptions = [
        LinkBetween(between=pair, latency_ms=probe.round_trip_ms / 2, gbit_per_second=probe.gbit_per_second)
        for pair, probe in sorted(probes.items())
        if abs(probe.round_trip_ms / 2 - latency) > ALIKE * latency
        or abs(probe.gbit_per_second - rate) > ALIKE * rate
    ]
    default = Link(latency_ms=latency, gbit_per_second=rate)
    return Resources(node=tuple(nodes), links=default, link=tuple(exceptions))


def _measured_by_rank(distributed: Any) -> Resources | None:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    master = socket.gethostbyname(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    address = _own_address(master)
    distributed.barrier()
    nodes: list[Any] = [None] * world
    distributed.all_gather_object(nodes, measured_node(address))
    with socket.create_server((address, 0)) as server:
        server.settimeout(_PATIENCE_SECONDS)
        where: list[Any] = [None] * world
        distributed.all_gather_object(where, server.getsockname()[:2])
        own: dict[tuple[int, int], Probe] = {}
        for one in range(world):
            for other in range(one + 1, world):
                distributed.barrier()
                if rank == one:
                    own[one, other] = ask(_connected(where[other]))
                elif rank == other:
                    answer(server.accept()[0])
    probes: list[Any] = [None] * world
    distributed.all_gather_object(probes, own)
    if rank != 0:
        return None
    return resources_of(nodes, {pair: probe for found in probes for pair, probe in found.items()})


def _loopback() -> Probe:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = _connected(server.getsockname()[:2])
        return probe_between(near, server.accept()[0])


def _connected(where: tuple[str, int]) -> socket.socket:
    return socket.create_connection(where, timeout=_PATIENCE_SECONDS)


def _own_address(master: str) -> str:
    """The address of the interface by which the master is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])


def _speed() -> float:
    """Products of two square matrices per second, by one thread; long enough for a quota to be felt."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left = torch.full((_SIZE, _SIZE), 0.5)
        into = torch.empty_like(left)
        torch.mm(left, left, out=into)
        count, start = 0, time.perf_counter()
        while (seconds := time.perf_counter() - start) < _SECONDS:
            torch.mm(left, left, out=into)
            count += 1
        return count / seconds
    finally:
        torch.set_num_threads(threads)


def _cores() -> int:
    """Cores that this process may use, by affinity and by its cgroup's quota."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = Path("/sys/fs/cgroup/cpu.max")
    if limit.is_file():
        quota, period = limit.read_text().split()
        if quota != "max":
            return max(1, min(available, round(int(quota) / int(period))))
    return available


def _memory() -> int:
    """Bytes, by the machine and by this process's cgroup."""
    total = int(psutil.virtual_memory().total)
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (said := limit.read_text().strip()) != "max":
        return min(total, int(said))
    return total


def _accelerators() -> tuple[str, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count()))
