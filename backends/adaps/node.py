"""The node: one process's share of the parameter server."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from adaps import _argument_checks, _core, rendezvous
from adaps._typing import NonFinite, Technique
from adaps.errors import AdapsError
from adaps.policy import Policy
from adaps.rendezvous import host_addresses
from adaps.tables import Table, managed_specs

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from adaps._typing import Int64Like
    from adaps.checkpoint import CheckpointWorker, Export, Restored
    from adaps.checkpoint.table_export import Exports

__all__ = ["TECHNIQUES", "Node", "NodeOptions", "listening_address", "open_node", "wants_frame_mac"]

TECHNIQUES: tuple[Technique, ...] = get_args(Technique)
"""How keys may be managed: `adaptive` decides for each key, the others are for comparison."""


NONFINITE: tuple[NonFinite, ...] = get_args(NonFinite)


class Node:
    """One process's share of the parameter server: in a cluster of one, or that of torchrun's environment.

    A context manager: its normal end closes the node together with all others; an exception in the body
    ends it at once, so that the others see `PeerLost` instead of waiting for it. The same goes for a process
    that ends with a node that nobody closed: if it ends with exit code 0, the node serves its rows until all
    others end, too, but not longer than `stall_timeout`; after an uncaught exception, ``sys.exit(1)`` or a
    signal the others see `PeerLost`.

    Parameters
    ----------
    tables : sequence of Table
        The same on every node.
    workers : int
        Worker threads of this node; the same on every node.
    channels : int
        Communication threads of this node; keys are distributed over them. The same on every node.
    techniques : str
        One of `TECHNIQUES`, for all tables.
    policy : Policy, optional
        How each table is managed, instead of `techniques`: its rules' `parameters` are names of tables, all
        of the kind ``tables``. The same on every node.
    timing : bool
        Act on an intent only when its start is near; otherwise at once.
    max_rounds_per_second : float
        Upper bound of exchange rounds. A round happens only if there is something to exchange.
    nonfinite : str
        What `push_gradients` does with rows whose gradient has NaN or infinity in it. ``raise``: ValueError
        naming table and row, and nothing of the call is applied. ``skip``: these rows stay as they are, and
        ``stats()["gradients_skipped"]`` counts them. ``pass``: they are applied as they are.
    peer_timeout : float
        Seconds after which a silent node counts as lost.
    stall_timeout : float
        Seconds after which a node counts as lost that lives but does not come to a barrier, a checkpoint,
        `close` or its end where another waits for it: its code hangs. It must be longer than whatever one
        node does alone while others wait, such as an evaluation. That of node 0 holds for all.
    connect_timeout : float
        Seconds until all nodes must have come together.
    network : str, optional
        The network to imitate between nodes: ``loopback`` (none), ``sockets`` (none, but nodes of one host
        do not exchange frames through shared memory), ``lan``, ``slow``, or delay and bandwidth as in
        ``0.5ms,2gbit``. Default: the environment variable ADAPS_NETWORK, else ``loopback``.
    listen : str, optional
        ``host`` or ``host:port`` where this node listens for the others. Default: the environment variable
        ADAPS_LISTEN; else any port of the loopback interface if all nodes are on this host, so that only its
        processes can connect, or of the interface by which MASTER_ADDR is reached.
    max_queued_bytes : int
        How much of each worker's calls may be on the way to other nodes, or back, in bytes. Beyond it a call
        that needs another node waits until less is, also an asynchronous one, and
        ``stats()["queue_full_micros"]`` counts the time; one call may be longer than that alone.
    max_unsent_bytes : int
        How much may wait on this node for each other one that takes it more slowly than this one has it, in
        bytes: rows that go to it and changes of replicas. Beyond it they stay where they are, where newer
        values take the place of older ones, until less waits; nobody is blocked but those who wait for them,
        and ``stats()["unsent_full_micros"]`` counts the time.
    frame_mac : bool, optional
        Let every frame carry a MAC (HMAC-SHA256 with keys of this connection), so that nobody on the way can
        change, repeat, reorder or leave out what the nodes tell each other: it is a `PeerLost` that says so.
        Nothing is encrypted. Each end pays 3.8 ns per byte and 0.8 µs per frame, on a core that it would hash
        260 MB per second with. The same on every node. Default: whether the environment variable
        ADAPS_FRAME_MAC is 1.
    agreement : mapping of str to str, optional
        What else all nodes have to have alike, by what it is called.

    Notes
    -----
    Nodes prove to each other that they know the job's secret. On one host it is handed over among the user's
    processes; nodes of several hosts need the same one in the environment variable ADAPS_SECRET, or in a
    file that only the user can read and ADAPS_SECRET_FILE names.

    Raises
    ------
    PolicyError
        If the policy does not fit the tables or the number of nodes, or has something in it that the server
        does not execute.
    RendezvousError
        If nodes are missing at the end of `connect_timeout`, the environment is incomplete, nodes of several
        hosts have no secret or listen at loopback addresses, or nodes differ in their `agreement`.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        workers: int = 1,
        channels: int = 1,
        techniques: Technique = "adaptive",
        policy: Policy | None = None,
        timing: bool = True,
        max_rounds_per_second: float = 500.0,
        nonfinite: NonFinite = "raise",
        peer_timeout: float = 5.0,
        stall_timeout: float = 1800.0,
        connect_timeout: float = 60.0,
        network: str | None = None,
        listen: str | None = None,
        max_queued_bytes: int = 256 << 20,
        max_unsent_bytes: int = 64 << 20,
        frame_mac: bool | None = None,
        agreement: Mapping[str, str] | None = None,
    ) -> None:
        self._described = tuple(tables)
        for table in self._described:
            _check_table(table)
        self.workers = _argument_checks.count("workers", workers, most=_core.MAX_WORKERS)
        """Number of worker threads of this node."""
        technique = _core.Technique[_argument_checks.one_of("technique", techniques, TECHNIQUES).upper()]
        if not isinstance(timing, bool):
            raise TypeError(f"timing is {timing!r}; it must be True or False")
        timeout = _argument_checks.seconds("connect_timeout", connect_timeout)
        checked = NodeOptions(
            workers=self.workers,
            channels=_argument_checks.count("channels", channels, most=_core.MAX_CHANNELS),
            technique=technique,
            timing=timing,
            max_rounds_per_second=_rate("max_rounds_per_second", max_rounds_per_second),
            nonfinite=_core.NonFinite[_argument_checks.one_of("nonfinite", nonfinite, NONFINITE).upper()],
            peer_timeout=_argument_checks.seconds("peer_timeout", peer_timeout),
            stall_timeout=_argument_checks.seconds("stall_timeout", stall_timeout),
            network=os.environ.get("ADAPS_NETWORK", "loopback") if network is None else network,
            listen=listening_address(listen),
            max_queued_bytes=_argument_checks.count("max_queued_bytes", max_queued_bytes, most=2**62),
            max_unsent_bytes=_argument_checks.count("max_unsent_bytes", max_unsent_bytes, most=2**62),
            frame_mac=wants_frame_mac(frame_mac),
        )
        if policy is not None:
            if not isinstance(policy, Policy):
                raise TypeError(f"policy is {policy!r}; it must be an adaps.Policy")
            if techniques != "adaptive":
                raise ValueError(
                    f"techniques is {techniques!r} beside a policy, which says it: give one of the two"
                )
        place = rendezvous.place_in_environment()
        self.policy = policy
        """How each table is managed, if that was said."""
        self.rank = 0 if place is None else place.rank
        """This node's number."""
        self.world_size = 1 if place is None else place.world_size
        """Number of nodes."""
        self.peer_timeout = checked.peer_timeout
        """Seconds after which a silent node counts as lost."""
        self.stall_timeout = checked.stall_timeout
        """Seconds after which a node counts as lost that lives but does not come where it is waited for."""
        specs = self._specs()
        deadline = time.monotonic() + timeout
        meeting_point = None if place is None else rendezvous.rendezvous_at(place, deadline, agreement)
        self._core = open_node(specs, checked, meeting_point, deadline)
        self._meeting = meeting_point
        self._posts: dict[str, str] = {}
        self._tables = {table.name: table for table in self._core.tables()}
        self._life = secrets.token_hex(8) if meeting_point is None else meeting_point.life
        self._participants: dict[int, CheckpointWorker] = {}
        self._exports: Exports | None = None
        self._making_exports = threading.Lock()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._core.abandon()
            self._end_checkpoints()

    def __repr__(self) -> str:
        state = ", closed" if self._core.closed else ""
        return f"<adaps.Node {self.rank} of {self.world_size}: {', '.join(self._tables)}{state}>"

    def _specs(self) -> list[_core.TableSpec]:
        """The tables as the core takes them."""
        if self.policy is None:
            return [table.spec() for table in self._described]
        return managed_specs(self._described, self.policy, self.world_size)

    @property
    def closed(self) -> bool:
        """Whether this node has ended."""
        return self._core.closed

    @property
    def num_keys(self) -> int:
        """Number of keys of all tables."""
        return self._core.num_keys

    @property
    def tables(self) -> tuple[_core.NodeTable, ...]:
        """The tables in the order of their keys."""
        return tuple(self._tables.values())

    def table(self, name: str) -> _core.NodeTable:
        """Find a table by its name.

        Parameters
        ----------
        name : str
            As in `Table`.

        Raises
        ------
        KeyError
            If there is none.
        """
        try:
            return self._tables[name]
        except KeyError:
            hint = _argument_checks.nearest(name, self._tables)
            raise KeyError(f"no table {name!r}{hint}; there are {', '.join(self._tables)}") from None

    def worker(self, index: int) -> _core.Worker:
        """Find the worker of a thread.

        Parameters
        ----------
        index : int
            From 0 to ``workers - 1``; the same worker however often it is asked for.

        Raises
        ------
        IndexError
            For any other.
        AdapsError
            If the node is closed.
        """
        return self._core.worker(index)

    def checkpoint(
        self, directory: str | os.PathLike[str], *, worker: int = 0, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Collective: write what all nodes hold, values and optimizer states, to files.

        Every worker of every node calls it with its own number, and is in no other call. It holds what every
        worker wrote before. A failure at any moment leaves the previous checkpoint of the directory as it is.

        Parameters
        ----------
        directory : path
            The same for all, on a file system that all nodes share; it is made if it does not exist. The
            checkpoint that it holds is replaced. The format is safetensors: see `adaps.checkpoint`.
        worker : int
            The worker that calls.
        extra : mapping of str to NumPy array or JSON value, optional
            What `restore` gives back to this worker.

        Raises
        ------
        CheckpointError
            On every worker, if anything could not be written, for instance because the disk is full.
        """
        self._participant(worker).write(Path(directory), extra or {})

    def restore(self, directory: str | os.PathLike[str], *, worker: int = 0) -> Restored:
        """Collective: make what all nodes hold that of a checkpoint; the number of nodes may differ.

        Every worker of every node calls it with its own number. Tables have to be those of the checkpoint;
        learning rates may differ, and are restored as well. Clocks go on from those of the checkpoint.

        Parameters
        ----------
        directory : path
            The same for all, as it was given to `checkpoint`.
        worker : int
            The worker that calls.

        Returns
        -------
        adaps.checkpoint.Restored
            What this worker added to the checkpoint, and who wrote it.

        Raises
        ------
        CheckpointError
            On every worker, if there is no complete checkpoint in the directory, a file is damaged or cannot
            be read, a table differs, or there is no room in memory for what this node reads, which is as
            much as it holds. Nothing is changed then.
        """
        return self._participant(worker).restore(Path(directory))

    def export(
        self, directory: str | os.PathLike[str], *, tables: Sequence[str] | None = None, worker: int = 0
    ) -> Export:
        """Collective: have the values of tables written to files, all of one moment, while training goes on.

        Every worker of every node calls it with its own number, and is in no other call. It returns when rows
        are copied, which takes as much memory as they have; threads write the files. So the export holds what
        every worker wrote before. If an export is still being written, that one ends first.

        The first export of a node's life holds all rows. Later ones to the same directory hold those that
        changed since, and some that other nodes have taken over, until they are as much as the first one:
        then the next one holds all rows. `load_export` reads them; so does anybody with safetensors alone.

        Where rows make up for steps in which they had no gradient (on one node, if steps are numbered:
        `adaps.optimizers`), all of them have done so in an export, which changes most of them each time. On
        several nodes no rows do, and an export holds what everybody reads.

        Parameters
        ----------
        directory : path
            The same for all, on a file system that all nodes share; it is made if it does not exist. Whatever
            fails, it holds the export before.
        tables : sequence of str, optional
            Which tables, by their names; the same for all, in every export to the directory. Default: all.
        worker : int
            The worker that calls.

        Returns
        -------
        adaps.checkpoint.Export
            To wait until it is written. `close` waits, too.

        Raises
        ------
        CheckpointError
            On every worker, if the directory cannot be written, is in use by another job, or holds
            checkpoints or exports of other tables, or if there is no memory for the copies.
        KeyError
            Naming a table that there is not.
        TypeError
            If `tables` is one name, or there is none in it.
        """
        from adaps.checkpoint.table_export import Exporter, Exports  # loads NumPy, which nothing else needs

        with self._making_exports:
            if self._exports is None:
                self._exports = Exports(self, self._core, self._described, self._life)
        return Exporter(self._exports, worker).export(Path(directory), tables)

    def check(self) -> None:
        """Raise `PeerLost` if another node is lost; never blocks."""
        self._core.check()

    def post(self, name: str, text: str) -> None:
        """Leave a short text for all workers of all nodes; it is no secret.

        Parameters
        ----------
        name : str
            How `posted` finds it.
        text : str
            Replaces what was left under the name before.
        """
        if self._meeting is None:
            self._posts[name] = text
        else:
            self._meeting.store.set(self._meeting.key(f"post/{name}"), text)

    def posted(self, name: str) -> str | None:
        """What was left under a name; None if nothing was yet. Never waits for it.

        Parameters
        ----------
        name : str
            As it was given to `post`, on any node.
        """
        if self._meeting is None:
            return self._posts.get(name)
        key = self._meeting.key(f"post/{name}")
        store = self._meeting.store
        return store.get(key).decode() if store.check([key]) else None

    def meeting_place(self, name: str) -> tuple[Store, str]:
        """Where the nodes of this cluster can meet for something else, such as a process group.

        Parameters
        ----------
        name : str
            Of what they meet for; the same on every node.

        Returns
        -------
        torch.distributed.Store
            Whose keys nobody else uses.
        str
            The address at which this node listens for the others.

        Raises
        ------
        AdapsError
            In a cluster of one.
        """
        if self._meeting is None:
            raise AdapsError("a cluster of one node has nobody to meet")
        return self._meeting.store_of(name), self._meeting.host

    def stats(self) -> dict[str, float]:
        """Names and numbers of everything that this node counts; those of the end once it is closed.

        Sums over its workers and channels since it was made, except `queued_bytes`, `resident_bytes` and
        `slots`, which are what there is now. The reference lists each with its unit.
        """
        return self._core.stats()

    def trace(self, keys: Int64Like) -> None:
        """Record from now on what happens to these keys on this node.

        What is here already is told first: a key that is owned as ``alloc``, a replica and intent as if they
        began now.

        Parameters
        ----------
        keys : int64 array, CPU tensor or sequence of int
            C-contiguous; they are traced beside those of earlier calls.

        Raises
        ------
        IndexError
            Naming the first key that does not exist.
        """
        self._core.trace(keys)

    def trace_events(self) -> list[_core.TraceEvent]:
        """What was recorded of the traced keys, the oldest first."""
        return self._core.trace_events()

    def _participant(self, worker: int) -> CheckpointWorker:
        from adaps.checkpoint import CheckpointWorker  # loads NumPy, which nothing else needs

        if worker not in self._participants:
            self._participants[worker] = CheckpointWorker(
                self._core, self._described, self.rank, self.world_size, self.workers, worker, self._life
            )
        return self._participants[worker]

    def _end_checkpoints(self) -> None:
        for participant in self._participants.values():
            participant.end()
        if self._exports is not None:
            self._exports.end()

    def close(self) -> None:
        """Collective: wait until every node is here and end this one; a second call does nothing.

        Worker threads must have ended their calls. An export that is being written is completed first.
        """
        if self._exports is not None:
            self._exports.await_last()
        self._core.close()
        self._end_checkpoints()


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The checked options of a node; see `Node`."""

    workers: int
    channels: int
    technique: _core.Technique
    timing: bool = True
    max_rounds_per_second: float = 500.0
    nonfinite: _core.NonFinite = _core.NonFinite.RAISE
    peer_timeout: float = 5.0
    stall_timeout: float = 1800.0
    network: str = "loopback"
    listen: tuple[str, int] | None = None
    max_queued_bytes: int = 256 << 20
    max_unsent_bytes: int = 64 << 20
    frame_mac: bool = False


def open_node(
    specs: Sequence[_core.TableSpec],
    options: NodeOptions,
    meeting_point: rendezvous.Rendezvous | None,
    deadline: float,
) -> _core.Node:
    """Make a node and connect it with the others, if any, until the deadline (of `time.monotonic`)."""
    _core.check_network(options.network)
    node = _core.Node(
        specs,
        rank=0 if meeting_point is None else meeting_point.rank,
        world_size=1 if meeting_point is None else meeting_point.world_size,
        workers=options.workers,
        channels=options.channels,
        technique=options.technique,
        timing=options.timing,
        max_rounds_per_second=options.max_rounds_per_second,
        nonfinite=options.nonfinite,
        stall_timeout=options.stall_timeout,
        max_queued_bytes=options.max_queued_bytes,
        max_unsent_bytes=options.max_unsent_bytes,
    )
    _live.add(node)
    _end_with_child()
    if meeting_point is not None:
        try:
            listen = options.listen or (meeting_point.interface(), 0)
            meeting = meeting_point.meet(node.listen(*listen), deadline)
            node.connect(
                meeting.addresses,
                secret=meeting.secret,
                network=options.network,
                connect_timeout=max(deadline - time.monotonic(), 1.0),
                peer_timeout=options.peer_timeout,
                frame_mac=options.frame_mac,
            )
        except BaseException:
            node.abandon()
            raise
    return node


def listening_address(listen: str | None) -> tuple[str, int] | None:
    """Host and port of `listen`, else of ADAPS_LISTEN; None leaves it to where the nodes meet."""
    if listen is not None:
        return host_addresses.split_address(listen, "listen")
    chosen = os.environ.get("ADAPS_LISTEN")
    return host_addresses.split_address(chosen, "ADAPS_LISTEN") if chosen else None


_live: weakref.WeakSet[_core.Node] = weakref.WeakSet()
"""Nodes that may not be closed."""


def _leave_nodes_unclosed() -> None:
    """The interpreter ends: nodes that nobody closed must not touch it any more."""
    for node in list(_live):
        node.leave_unclosed()
    _core.use_logging(False)


def _end_with_child() -> None:
    """Have `_end_nodes_of_child` called if this process is a child of `multiprocessing`."""
    global _ending
    if multiprocessing.parent_process() is not None and _ending != os.getpid():
        _ending = os.getpid()
        multiprocessing.util.Finalize(None, _end_nodes_of_child, exitpriority=0)


_ending = 0
"""The process of multiprocessing that will end its nodes."""


def _end_nodes_of_child() -> None:
    """A process that `multiprocessing` forked leaves without the handlers that others leave with."""
    error = sys.exc_info()[1]
    _leave_nodes_unclosed()
    _core.end_served_nodes(error is None or (isinstance(error, SystemExit) and not error.code))


_core.use_logging(True)
atexit.register(_leave_nodes_unclosed)


def wants_frame_mac(option: bool | None) -> bool:
    """Whether frames get a MAC, by the option of `Node` or else the environment."""
    if option is None:
        said = os.environ.get("ADAPS_FRAME_MAC", "0")
        return _argument_checks.one_of("the environment variable ADAPS_FRAME_MAC", said, ["0", "1"]) == "1"
    if not isinstance(option, bool):
        raise TypeError(f"frame_mac is {option!r}; it must be True or False")
    return option


def _check_table(table: Any) -> None:
    if not isinstance(table, Table):
        raise TypeError(f"tables holds {table!r}; it must be a sequence of adaps.Table")


def _rate(name: str, value: float) -> float:
    if _argument_checks.number(name, value) <= 0:
        raise ValueError(f"{name} is {value!r}; it must be more than 0")
    return float(value)
