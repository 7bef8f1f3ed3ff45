"""What a use case costs with a backend on clusters that are only simulated."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from adabench.backends.policies.protocol import Link, PolicyError, Resources
from adabench.backends.protocol import ServerOptions, Simulated, SimulatedRun, Simulation, endless
from adabench.harness.errors import UsageError
from adabench.harness.machine.namespaces import link_of
from adabench.harness.planning.policies import policy_of_usecase
from adabench.harness.planning.syntax import convert_params, parse_network, parse_selections
from adabench.harness.plugins.registry import load_backend
from adabench.usecases.protocol import UseCase

__all__ = ["clusters_of", "computing", "simulated", "simulated_once", "step_seconds"]

_LINKS = {
    "lan": Link(latency_ms=0.25, gbit_per_second=10.0),
    "slow": Link(latency_ms=1.0, gbit_per_second=1.0),
}
_MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_GIGABITS = {"kbit": 1e-6, "mbit": 1e-3, "gbit": 1.0}
_WARM_UP, _MEASURED = 3, 15
"""Steps of the use case."""


def clusters_of(
    resources: Resources | None, nodes: Sequence[int] | None, network: str | None
) -> list[Resources]:
    """Each cluster that is simulated.

    Parameters
    ----------
    resources : Resources, optional
        Of a file.
    nodes : sequence of int, optional
        Sizes of clusters of nodes like the first of the file; without it the file's own cluster.
    network : str, optional
        In the place of the file's links, as for runs.
    """
    given = resources or Resources.alike(1)
    if resources is None:
        given = msgspec.structs.replace(given, node=(msgspec.structs.replace(given.node[0], cores=2),))
    if network is not None:
        given = msgspec.structs.replace(given, links=_link(network), link=())
    if nodes is None:
        return [given]
    return [msgspec.structs.replace(given, node=given.node[:1] * count, link=()) for count in nodes]


def _link(network: str) -> Link:
    text = parse_network(network)
    shape = link_of(text) or text
    if shape == "loopback":
        return Link()
    if shape in _LINKS:
        return _LINKS[shape]
    found = re.fullmatch(r"([\d.]+)(us|ms|s),([\d.]+)(kbit|mbit|gbit)", shape)
    assert found is not None, shape
    delay, unit, rate, of = found.groups()
    if float(rate) == 0:
        raise UsageError(f"--network {network}: a link that carries nothing")
    return Link(latency_ms=float(delay) * _MILLISECONDS[unit], gbit_per_second=float(rate) * _GIGABITS[of])


def computing(
    usecase: UseCase, given: float | None, kept: float | None, file: Path | None
) -> tuple[float, str]:
    """What a step computes for, in seconds of a core, and in words how that is known.

    Parameters
    ----------
    usecase : UseCase
    given : float, optional
        Milliseconds on the command line, which count more than all else.
    kept : float, optional
        Milliseconds of the resources; without them a step is measured.
    file : Path, optional
        Where the resources are from.
    """
    if given is not None:
        return 1e-3 * given, "as given"
    if kept is not None:
        return 1e-3 * kept, f"as {file} says"
    measured = step_seconds(usecase)
    return measured, f"measured here; --step {1e3 * measured:.3g} repeats it"


def step_seconds(usecase: UseCase) -> float:
    """CPU seconds of a training step of the plain model, by one thread on this machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = usecase.model()
        optimizer = usecase.optimizer(model)
        found = []
        for batch in islice(endless(usecase.loaders(0, 1).train), _WARM_UP + _MEASURED):
            began = time.thread_time()
            optimizer.zero_grad()
            usecase.loss(model, batch).backward()
            optimizer.step()
            found.append(time.thread_time() - began)
        return median(found[_WARM_UP:])
    finally:
        torch.set_num_threads(threads)


def simulated(
    usecase: UseCase,
    backend: str,
    policy: str | None,
    clusters: Sequence[Resources],
    *,
    workers: int,
    steps: int,
    compute: float,
    traced_steps: int,
    seed: int,
) -> Iterator[tuple[str, Resources, Simulation]]:
    """Simulate a backend as the command line gives it, under each policy on each cluster.

    Yields
    ------
    tuple of str, Resources and Simulation
        The policy, the cluster, and what was found.

    Raises
    ------
    UsageError
        If there is no such backend, it cannot be simulated, or a policy does not fit.
    """
    for name, options in _selected(backend, policy):
        for resources in clusters:
            found = simulated_once(
                usecase,
                name,
                options,
                resources,
                workers=workers,
                steps=steps,
                compute=compute,
                traced_steps=traced_steps,
                seed=seed,
            )
            yield options.policy, resources, found


def simulated_once(
    usecase: UseCase,
    backend: str,
    options: Any,
    resources: Resources,
    *,
    workers: int,
    steps: int,
    compute: float,
    traced_steps: int = 0,
    seed: int = 0,
) -> Simulation:
    """Simulate a backend with its options on a cluster.

    Raises
    ------
    UsageError
        If the backend cannot be simulated, or its policy does not fit.
    """
    found = load_backend(backend)()
    if not isinstance(found, Simulated) or not isinstance(options, ServerOptions):
        raise UsageError(f"backend {backend!r} is none on the parameter server: only those are simulated")
    made = policy_of_usecase(options.policy, usecase, resources, workers)
    run = SimulatedRun(resources.cluster(), made, workers, steps, compute, traced_steps, seed)
    try:
        return found.simulate(usecase, options, run)
    except (PolicyError, ValueError) as error:
        raise UsageError(f"backend {backend!r}: {error}") from error


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
