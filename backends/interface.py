"""What a backend is: one strategy of signalling intent (or a peer system), as a session one loop can train.

The loop is the same for every pair of backend and use case::

    for batch in session.batches(loaders.train):
        session.step(usecase.loss(session.model, batch))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import msgspec
from torch import Tensor, nn

from adabench.usecases.interface import UseCase
from adaps._typing import SamplingScheme
from adaps.policy import Policy
from adaps.simulation import Cluster as SimulatedCluster
from adaps.simulation import Costs as Costs  # for the harness, which knows no adaps
from adaps.simulation import Incident as Incident
from adaps.simulation import LostNode as LostNode
from adaps.simulation import Simulation as Simulation
from adaps.simulation import Stall as Stall
from adaps.simulation import Straggler as Straggler
from autoada.training.endless import endless as endless  # for the harness, which knows no autoada
from autoada.training.technique_choice import TechniqueChoice as TechniqueChoice

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class Unavailable(RuntimeError):
    """A backend cannot work here: its package is not installed, or a topology or use case is none of its.

    The message is one sentence, which becomes the reason of a run that is recorded as `skipped`. A backend
    raises it when it is constructed, before anything is launched (`importlib.util.find_spec` tells whether a
    package is installed without importing it), or in `open` for what depends on use case, cluster or options.
    """


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a backend; a backend derives its own class."""


class ServerOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every backend on the parameter server.

    Attributes
    ----------
    lookahead : int
        Batches announced ahead of their use; 0 announces none.
    policy : str
        How each parameter is managed: a policy's file, or a builder such as nups or nups[times=50]; see
        `adabench list policies`.
    timing : bool
        Whether intent is acted on as late as it can be.
    channels : int
        Threads that exchange rows with the other nodes.
    sampling : str
        Who draws what a batch brings at random, such as negatives: the use case's own loader, or the server
        by one of its schemes, with the seed of the run. Backends with hand-written intent have it drawn when
        a batch is used, and leave to the scheme what is announced for it; with automatic intent it is drawn
        when a batch is fetched, and announced like the batch's other rows.
    inits : int
        How many initial weights the nodes try together for some steps before the training, which begins with
        the best of them (`autoada.select_initialization`); 1 for those of the run's seed.
    row_dtype : str
        What values of tables are in the server's memory: float32, or bfloat16 in half of it.
    fault : str
        What is wrong with the gradients of some workers in every step: nothing; `flip`, times minus the
        severity; `scale`, times the severity; `noise`, normal noise of the severity times their root mean
        square is added; `stale`, they are those of as many steps ago; `nan`, they are no numbers.
    faulty : str
        Which workers these are: their numbers among all workers, such as 0+3.
    severity : float
        Of the fault.
    """

    lookahead: int = 20
    policy: str = "adaptive"
    timing: bool = True
    channels: int = 1
    sampling: Literal["loader"] | SamplingScheme = "loader"
    inits: int = 1
    row_dtype: Literal["float32", "bfloat16"] = "float32"
    fault: Literal["none", "flip", "scale", "noise", "stale", "nan"] = "none"
    faulty: str = ""
    severity: float = 10.0

    @property
    def faulty_workers(self) -> frozenset[int]:
        """The numbers that `faulty` names."""
        return frozenset(map(int, self.faulty.split("+"))) if self.faulty else frozenset()

    def __post_init__(self) -> None:
        if self.faulty and not all(part.isascii() and part.isdigit() for part in self.faulty.split("+")):
            raise ValueError(f"faulty is {self.faulty}: it must be numbers of workers, such as 0+3")
        if self.fault != "none" and not self.faulty:
            raise ValueError(f"fault is {self.fault}: say faulty=0+3, or which workers else are wrong")
        if not 0 < self.severity < math.inf:
            raise ValueError(f"severity is {self.severity:g}: it must be a number above 0")
        if self.fault == "stale" and self.severity % 1:
            raise ValueError(f"severity is {self.severity:g}: with fault=stale it must be a number of steps")
        if self.inits < 1:
            raise ValueError(f"inits is {self.inits}: it must be 1 or more")


@dataclass(frozen=True)
class Cluster:
    """Where one worker stands: thread `worker` of `workers` in node process `rank` of `world_size`.

    Attributes
    ----------
    rank, world_size : int
        The node process, and how many there are.
    worker, workers : int
        The thread in it, and how many each process has.
    seed : int
        Of the run: weights and the order of the data.
    network : str
        What the parameter server is to make of its links.
    share : callable
        Gives all worker threads of a node process one object: the first caller's function makes it, and the
        owner of the cluster closes it (``close()``) after every session of the process is closed.
    host : str, optional
        Where this node listens for the others if they do not share one loopback device.
    policy : adaps.Policy, optional
        How each parameter is managed, if the backend's options have a `policy`: built for the use case and
        the number of nodes before the processes start, and the same in all of them.
    """

    rank: int
    world_size: int
    worker: int
    workers: int
    seed: int
    network: str
    share: Callable[[Callable[[], Any]], Any]
    host: str | None = None
    policy: Policy | None = None

    @property
    def index(self) -> int:
        """This worker's number among all workers of the cluster."""
        return self.rank * self.workers + self.worker


@dataclass(frozen=True)
class SimulatedRun:
    """What is simulated.

    Attributes
    ----------
    cluster : adaps.Cluster
        Machines and links.
    policy : adaps.Policy
        How each parameter is managed.
    workers : int
        Threads that train on each node.
    steps : int or None
        Of each worker; None is one epoch.
    epoch : int
        Steps behind which workers wait for each other, as of `adaps.simulate`; 0 for none.
    compute : float
        Seconds that a step computes for, on the machine of the costs.
    traced_steps : int
        So many steps are kept for a trace.
    seed : int
        As of `adaps.simulate`.
    incidents : tuple of adaps.Straggler, adaps.Stall or adaps.LostNode
        What befalls nodes.
    peer_timeout : float
        Seconds after which a node that says nothing is lost.
    """

    cluster: SimulatedCluster
    policy: Policy
    workers: int = 1
    steps: int | None = None
    epoch: int = 0
    compute: float = 0.01
    traced_steps: int = 0
    seed: int = 0
    incidents: tuple[Incident, ...] = ()
    peer_timeout: float = 5.0


@dataclass(frozen=True)
class Served:
    """A table of the parameter server that some of a model's parameters lie in.

    Attributes
    ----------
    table : str
        Its name.
    parameters : tuple of str
        Qualified names.
    dense : bool
        Whether every step reads all of it; then it consists of blocks.
    first_key, keys : int
        Of its rows, or blocks, in the server.
    length, width : int
        Floats of a row, without and with its optimizer's state.
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
    """A backend for which a policy can be searched: it can say where parameters lie in the server."""

    def served(self, usecase: UseCase) -> tuple[Served, ...]:
        """The server's tables for a use case's model, in their order.

        Parameters
        ----------
        usecase : UseCase

        Raises
        ------
        ValueError
            Naming what of it cannot be searched for.
        """
        ...


@runtime_checkable
class Simulated(Protocol):
    """A backend that can say what it would cost on a cluster that is not there."""

    def simulate(self, usecase: UseCase, options: Any, run: SimulatedRun) -> Simulation:
        """Replay what the use case's batches access.

        Parameters
        ----------
        usecase : UseCase
        options : Options
            Of this backend's own `Options`.
        run : SimulatedRun

        Raises
        ------
        ValueError
            Naming what of it cannot be simulated.
        """
        ...


class Session(Protocol):
    """One worker's training with one strategy."""

    @property
    def model(self) -> nn.Module:
        """What the use case's loss and evaluation call."""
        ...

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of `loader` in its order; signals intent ahead, yields each when it is time."""
        ...

    def step(self, loss: Tensor) -> None:
        """Backward from the scalar `loss`, update, advance the clock."""
        ...

    def synchronize(self) -> None:
        """Collective: afterwards every worker's updates are visible to every worker."""
        ...

    def counters(self) -> dict[str, float]:
        """What the node has counted so far, of all its workers (empty without a parameter server)."""
        ...

    def close(self) -> None:
        """Collective: ends the session."""
        ...


@runtime_checkable
class OwnLoop(Protocol):
    """A session of a system that has a training loop of its own.

    The common loop asks it for whole epochs, and for no batches and steps. Everything else is as for every
    session.
    """

    def train_epoch(self, loader: Iterable[Any]) -> int:
        """Train once on the data that `loader` gives the common loop.

        Returns
        -------
        int
            How many samples that were, as the use case counts them.
        """
        ...


@runtime_checkable
class Traceable(Protocol):
    """A session that can write down the life of rows: where they are held, and which nodes want them."""

    def trace(self, rows: Mapping[str, Tensor]) -> None:
        """From now on, write down what happens on this node to `rows`: table name -> int64 row ids."""
        ...

    def traced(self) -> pd.DataFrame:
        """What has happened, as `adaps.trace_frame` says it."""
        ...


@runtime_checkable
class TableCounting(Protocol):
    """A session that counts for each table of the parameter server, too."""

    def table_counters(self) -> dict[str, dict[str, float]]:
        """For each table what the node has counted so far, of all its workers."""
        ...


@runtime_checkable
class Choosing(Protocol):
    """A session that finds out in its first steps how some tables are best managed."""

    def chosen(self) -> list[TechniqueChoice]:
        """What it has chosen, or not yet, for each of them."""
        ...


class Timed(Protocol):
    """Makes a function out of another one that does the same and counts its time as one part of a step."""

    def __call__(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]: ...


@runtime_checkable
class Measurable(Protocol):
    """A session whose steps have parts of their own, beside those of the common loop."""

    def measured(self, timed: Timed) -> AbstractContextManager[None]:
        """While it lasts, calls of this process that make up such a part go through `timed`."""
        ...


class Backend(Protocol):
    """A strategy.

    Constructing it, without arguments, or `open` raises `Unavailable` where it cannot work.

    Attributes
    ----------
    name : str
        What the command line calls it.
    Options : type[Options]
        Its options with their defaults.
    distributed : bool
        False for one that always runs as a single process.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]]
    distributed: ClassVar[bool]

    def open(self, usecase: UseCase, cluster: Cluster, options: Any) -> Session:
        """Collective: begin one worker's training.

        Parameters
        ----------
        usecase : UseCase
            What to train.
        cluster : Cluster
            Where this worker stands.
        options : Options
            Of this backend's own `Options`.
        """
        ...


@runtime_checkable
class TakesPolicy(Protocol):
    """A backend whose options have a `policy`, which `Cluster.policy` is built of."""

    def check_policy(self, usecase: UseCase, policy: Policy, nodes: int, workers: int, network: str) -> None:
        """Before any process starts: refuse a policy that it cannot execute.

        Parameters
        ----------
        usecase : UseCase
            What is to be trained.
        policy : adaps.Policy
            Built for it.
        nodes : int
            Of the cluster.
        workers : int
            Of each node.
        network : str
            What the parameter server is to make of its links, as in `Cluster`.

        Raises
        ------
        adaps.policy.PolicyError
            In one sentence, what does not fit or is not executed.
        """
        ...
