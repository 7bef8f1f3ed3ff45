"""CPU time of a training step outside the server's calls, measured with nodes on this machine.

Run as a program, this module is one of these nodes.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from statistics import mean
from typing import Any

from adabench.backends.interface import ServerOptions, TrainingSession, WorkerContext
from adabench.backends.policies.cost_model import ask_nodes
from adabench.backends.policies.resources import Node, Resources
from adabench.harness.estimate.simulate import SimulationSettings, require_server, simulated_once
from adabench.harness.plugins.registry import load_backend
from adabench.harness.study.model_parameters import model_parameters_of, usecase_from
from adabench.harness.study.policies import made_policy
from adabench.harness.study.syntax import parse_selections
from adaps import Costs

WARM_UP, MEASURED = 20, 100
"""Numbers of steps. In the warm-up, AutoAda learns how batches become keys."""


def compute_of(
    usecase: str,
    backend: str,
    given: float | None,
    file: Path | None,
    cluster: Resources | None,
    data: Path | None,
    seed: int,
) -> tuple[float, str]:
    """Return the compute time of a step in seconds, and its source: command line, file, or a measurement.

    Parameters
    ----------
    usecase, backend : str
        Use case and backend in the form of the command line.
    given : float, optional
        Milliseconds on the command line.
    file : Path, optional
        File of `cluster`.
    cluster : Resources, optional
        Cluster that may have a measured time for this use case.
    data : Path, optional
        Folder or file of the use case's data.
    seed : int
        Seed for the initial weights and the data order.
    """
    if given is not None:
        return 1e-3 * given, "as given"
    if cluster is not None and usecase in cluster.steps:
        return 1e-3 * cluster.steps[usecase], f"as given in {file}"
    name = parse_selections(backend)[0].name
    costs = None if cluster is None else cluster.costs
    measured = step_seconds(usecase, backend=name, data=data, seed=seed, costs=costs)
    return measured, f"measured now; --step {1e3 * measured:.3g} skips this measurement"


def step_seconds(
    usecase: str,
    *,
    backend: str = "autoada-automatic",
    data: Path | None = None,
    seed: int = 0,
    costs: Costs | None = None,
    nodes: int = 2,
) -> float:
    """Return the CPU seconds of the training thread per step, without its calls of the parameter server.

    The time covers the model's forward and backward pass, the loader, and the backend's work in Python. For
    AutoAda this work is the prediction of rows and the computation of row gradients. Nodes train for some
    steps. The simulated time of their calls is subtracted, so that it is not counted twice.

    Parameters
    ----------
    usecase : str
        Use case in the form of the command line.
    backend : str
        Name of the backend, without options.
    data : Path, optional
        Folder or file of the use case's data.
    seed : int
        Seed for the initial weights and the data order.
    costs : Costs, optional
        Costs of the server's calls, as measured on this machine.
    nodes : int
        Number of nodes that train. AutoAda has less to do on a single node.

    Raises
    ------
    UsageError
        If there is no such use case or backend, or its data cannot be used.
    RuntimeError
        If a node could not train.
    """
    options = _options(backend)
    trained = usecase_from(usecase, data, seed)
    steps = WARM_UP + MEASURED + options.lookahead
    given = [usecase, backend, None if data is None else str(data), seed]
    speed = 1.0 if costs is None else costs.speed
    pair = Resources(node=(Node(cores=2, speed=speed),) * nodes, costs=costs)
    settings = SimulationSettings(workers=1, steps=steps, compute=0.0, seed=seed)
    found = simulated_once(trained, backend, options, pair, settings)
    # The simulation refuses an empty loader, through which the nodes would loop for ever.
    said = ask_nodes(__name__, nodes, json.dumps(given))
    calls = sum(node.working for node in found.nodes) / found.steps
    return max(float(mean(said)) - calls, 0.0)


def _options(backend: str) -> ServerOptions:
    require_server(backend)
    options = load_backend(backend).Options()
    assert isinstance(options, ServerOptions)
    return options


def _measure(usecase: str, backend: str, data: str | None, seed: int) -> float:
    """Return the CPU seconds of this thread per step."""
    import torch

    torch.set_num_threads(1)
    rank, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    trained = usecase_from(usecase, None if data is None else Path(data), seed)
    options = _options(backend)
    made: list[Any] = []

    def share(make: Callable[[], Any]) -> Any:
        made.append(make())
        return made[0]

    cluster = WorkerContext(
        rank=rank,
        world_size=nodes,
        worker=0,
        workers=1,
        seed=seed,
        network="loopback",
        per_process=share,
        policy=made_policy(options.policy, model_parameters_of(trained), Resources.alike(nodes)),
    )
    session: TrainingSession = load_backend(backend)().open(trained, cluster, options)
    session.synchronize()
    # The last batches are fetched but not used. Otherwise, the last measured steps would signal no intent.
    batches = _First(trained.loaders(rank, nodes).train, WARM_UP + MEASURED + options.lookahead)
    began = ended = time.thread_time()
    for taken, batch in enumerate(session.batches(batches)):
        if taken == WARM_UP:
            began = time.thread_time()
        if taken == WARM_UP + MEASURED:
            ended = time.thread_time()
        session.step(trained.loss(session.model, batch))
    session.synchronize()
    session.close()
    for node in made:
        node.close()
    return (ended - began) / MEASURED


class _First:
    """The first batches of a loader, epoch after epoch."""

    def __init__(self, loader: Any, number: int) -> None:
        self._loader, self._number = loader, number

    def __iter__(self) -> Iterator[Any]:
        return islice(chain.from_iterable(repeat(self._loader)), self._number)


if __name__ == "__main__":
    print(json.dumps(_measure(*json.loads(sys.argv[1]))))
