"""The interface of a backend: a strategy for signalling intent, or an external system.

The loop is the same for every pair of backend and use case::

    for batch in session.batches(loaders.train):
        session.step(usecase.loss(session.model, batch))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec
from torch import Tensor, nn

from adabench.usecases.interface import UseCase
from adaps._typing import SamplingScheme
from adaps.policy import Policy
from adaps.simulation import Cluster as SimulatedCluster
from adaps.simulation import Incident, Simulation

if TYPE_CHECKING:
    import pandas as pd


class Unavailable(RuntimeError):
    """A backend cannot work here: its package is missing, or it does not support a topology or use case.

    The message is a sentence, which is recorded as the reason of a `skipped` run. A backend raises the error
    when it is constructed, before anything is launched, or in `open` if use case, context or options are not
    supported. `importlib.util.find_spec` finds a package without importing it.
    """


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a backend. A backend derives its own class."""


class ServerOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every backend on the parameter server.

    Attributes
    ----------
    lookahead : int
        Number of batches for which intent is signalled in advance; 0 signals none.
    policy : str
        Management of each parameter: a policy's file, or a builder such as nups or nups[times=50]; see
        `adabench list policies`.
    timing : bool
        Whether the server acts on an intent as late as possible.
    channels : int or None
        Number of threads of a node that exchange rows with other nodes. Without a number, a quarter of the
        node's workers, rounded down, but at least 1.
    sampling : str
        Source of the rows that a batch draws at random, such as negatives: the use case's own loader, or the
        server with one of its schemes and the seed of the run. Backends with hand-written intent draw when a
        batch is used, and the scheme determines for which rows intent is signalled. With automatic intent,
        rows are drawn when a batch is fetched, and intent is signalled as for the batch's other rows.
    row_dtype : str
        Type of the tables' values in the server's memory: float32, or bfloat16, which takes half of the
        memory.
    fault : str
        Fault in the gradients of some workers in every step. `flip` multiplies them by the negative severity,
        and `scale` by the severity. `noise` adds normal noise of the severity times their root mean square.
        `stale` uses the gradients of `severity` steps ago. `nan` replaces them by NaN.
    faulty : str
        Indices of the faulty workers among all workers, such as 0+3.
    severity : float
        Severity of the fault, as described for `fault`.
    """

    lookahead: int = 20
    policy: str = "adaptive"
    timing: bool = True
    channels: int | None = None
    sampling: Literal["loader"] | SamplingScheme = "loader"
    row_dtype: Literal["float32", "bfloat16"] = "float32"
    fault: Literal["none", "flip", "scale", "noise", "stale", "nan"] = "none"
    faulty: str = ""
    severity: float = 10.0

    @property
    def faulty_workers(self) -> frozenset[int]:
        """The indices in `faulty`."""
        return frozenset(map(int, self.faulty.split("+"))) if self.faulty else frozenset()

    def __post_init__(self) -> None:
        if self.faulty and not all(part.isascii() and part.isdigit() for part in self.faulty.split("+")):
            raise ValueError(f"faulty is {self.faulty}: it must be numbers of workers, such as 0+3")
        if self.fault != "none" and not self.faulty:
            raise ValueError(f"fault is {self.fault}: set faulty=0+3, or the numbers of other wrong workers")
        if not 0 < self.severity < math.inf:
            raise ValueError(f"severity is {self.severity:g}: it must be a number above 0")
        if self.fault == "stale" and self.severity % 1:
            raise ValueError(f"severity is {self.severity:g}: with fault=stale it must be a number of steps")
        for name, least in (("lookahead", 0), ("channels", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name} is {value}: it must be {least} or more")


@dataclass(frozen=True)
class WorkerContext:
    """A worker's place in the cluster, and the objects that it shares: thread `worker` of process `rank`.

    Attributes
    ----------
    rank, world_size : int
        Rank of the node process, and number of node processes.
    worker, workers : int
        Index of the thread in its process, and number of threads of each process.
    seed : int
        Seed for the initial weights and the data order.
    network : str
        Network that the parameter server imitates on its links.
    per_process : callable
        Function that returns one object to all worker threads of a node process. The function of the first
        caller creates it. The owner of the context closes it (``close()``) after all sessions of the process
        are closed.
    host : str, optional
        Address where this node listens for other nodes, unless all nodes share one loopback device.
    policy : adaps.Policy, optional
        Management of each parameter, if the backend's options have a `policy`. It is built for the use case
        and the number of nodes before the processes start, and is equal in all of them.
    """

    rank: int
    world_size: int
    worker: int
    workers: int
    seed: int
    network: str
    per_process: Callable[[Callable[[], Any]], Any]
    host: str | None = None
    policy: Policy | None = None

    @property
    def index(self) -> int:
        """The worker's index among all workers of the cluster."""
        return self.rank * self.workers + self.worker


@dataclass(frozen=True)
class SimulatedRun:
    """A run on a simulated cluster.

    Attributes
    ----------
    cluster : adaps.Cluster
        Machines and links.
    policy : adaps.Policy
        Management of each parameter.
    workers : int
        Number of training threads on each node.
    steps : int or None
        Number of steps of each worker; None for one epoch.
    steps_before : int
        Number of steps of the training before these, as in `adaps.simulate`.
    epoch : int
        Number of steps after which workers wait for each other, as in `adaps.simulate`; 0 for never.
    compute : float
        Seconds of computation per step, on the machine of the costs.
    traced_steps : int
        Number of steps that are recorded for a trace.
    seed : int
        Seed of the simulation, as in `adaps.simulate`.
    incidents : tuple of adaps.Straggler, adaps.Stall or adaps.LostNode
        Incidents of nodes.
    peer_timeout : float
        Time in seconds without a message after which a node counts as lost.
    """

    cluster: SimulatedCluster
    policy: Policy
    workers: int = 1
    steps: int | None = None
    steps_before: int = 0
    epoch: int = 0
    compute: float = 0.01
    traced_steps: int = 0
    seed: int = 0
    incidents: tuple[Incident, ...] = ()
    peer_timeout: float = 5.0


@dataclass(frozen=True)
class Served:
    """A table of the parameter server that stores some of a model's parameters.

    Attributes
    ----------
    table : str
        Name of the table.
    parameters : tuple of str
        Qualified names of the parameters.
    dense : bool
        Whether every step reads the whole table, which then consists of blocks.
    first_key, keys : int
        First key and number of keys of its rows, or blocks, in the server.
    length, width : int
        Numbers of floats of a row, without and with its optimizer's state.
    """

    table: str
    parameters: tuple[str, ...]
    dense: bool
    first_key: int
    keys: int
    length: int
    width: int


@runtime_checkable
class Searchable(Protocol):
    """A backend that supports the search for a policy. It reports the server's tables."""

    def served(self, usecase: UseCase) -> tuple[Served, ...]:
        """Return the server's tables for a use case's model, in order.

        Parameters
        ----------
        usecase : UseCase
            Use case whose model is served.

        Raises
        ------
        ValueError
            If the use case is not supported; the message names the obstacle.
        """
        ...


@runtime_checkable
class Simulated(Protocol):
    """A backend that can be simulated on a cluster that does not exist."""

    def simulate(self, usecase: UseCase, options: Any, run: SimulatedRun) -> Simulation:
        """Replay the accesses of the use case's batches.

        Parameters
        ----------
        usecase : UseCase
            Use case whose accesses are replayed.
        options : Options
            Options of the backend's own type `Options`.
        run : SimulatedRun
            Run to simulate.

        Raises
        ------
        ValueError
            If the use case is not supported; the message names the obstacle.
        """
        ...


class TrainingSession(Protocol):
    """One worker's training with one strategy."""

    @property
    def model(self) -> nn.Module:
        """The model for the use case's loss and evaluation."""
        ...

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of `loader` in its order, each when it can be used. Signals intent in advance."""
        ...

    def step(self, loss: Tensor) -> None:
        """Run the backward pass from the scalar `loss`, update the parameters, and advance the clock."""
        ...

    def synchronize(self) -> None:
        """Make all workers' updates visible to all workers. Collective."""
        ...

    def counters(self) -> dict[str, float]:
        """Return the node's counters so far, over all its workers; empty without a parameter server."""
        ...

    def close(self) -> None:
        """End the session. Collective."""
        ...


@runtime_checkable
class OwnLoop(Protocol):
    """A session of a system with its own training loop.

    The common loop requests whole epochs instead of batches and steps. The other methods are as in every
    session.
    """

    def train_epoch(self, loader: Iterable[Any]) -> int:
        """Train once on the data that `loader` provides to the common loop.

        Returns
        -------
        int
            Number of samples, as counted by the use case.
        """
        ...


@runtime_checkable
class Traceable(Protocol):
    """A session that can record events of rows: which nodes hold them, and which nodes have intent."""

    def trace(self, rows: Mapping[str, Tensor]) -> None:
        """Record all later events of `rows`, int64 row ids by table name, on this node."""
        ...

    def traced(self) -> pd.DataFrame:
        """Return the recorded events, in the format of `adaps.trace_frame`."""
        ...


@runtime_checkable
class TableCounting(Protocol):
    """A session that also has counters for each table of the parameter server."""

    def table_counters(self) -> dict[str, dict[str, float]]:
        """Return the node's counters so far for each table, over all its workers."""
        ...


class Timed(Protocol):
    """Wraps a function so that its time counts as one part of a step."""

    def __call__(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]: ...


@runtime_checkable
class Measurable(Protocol):
    """A session with more parts of a step than the common loop has."""

    def measured(self, timed: Timed) -> AbstractContextManager[None]:
        """Measure calls of this process that are such a part with `timed`, during the context."""
        ...


class Backend(Protocol):
    """A strategy.

    Its construction, without arguments, or `open` raises `Unavailable` if it cannot work.

    Attributes
    ----------
    name : str
        Name on the command line.
    Options : type[Options]
        Type of its options, with their defaults.
    distributed : bool
        Whether the backend can run as several processes.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]]
    distributed: ClassVar[bool]

    def open(self, usecase: UseCase, context: WorkerContext, options: Any) -> TrainingSession:
        """Begin one worker's training. Collective.

        Parameters
        ----------
        usecase : UseCase
            Task to train.
        context : WorkerContext
            The worker's place in the cluster, and the objects that it shares.
        options : Options
            Options of the backend's own type `Options`.
        """
        ...


@runtime_checkable
class TakesPolicy(Protocol):
    """A backend with an option `policy`, from which `WorkerContext.policy` is built."""

    def check_policy(self, usecase: UseCase, policy: Policy, nodes: int, workers: int, network: str) -> None:
        """Raise an error for a policy that the backend cannot execute, before any process starts.

        Parameters
        ----------
        usecase : UseCase
            Task to train.
        policy : adaps.Policy
            Policy that was built for the use case.
        nodes : int
            Number of nodes of the cluster.
        workers : int
            Number of workers of each node.
        network : str
            Network that the parameter server imitates on its links, as in `WorkerContext`.

        Raises
        ------
        adaps.policy.PolicyError
            If the policy does not fit or is not executed. The message names the part.
        """
        ...
