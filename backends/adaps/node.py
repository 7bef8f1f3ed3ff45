"""The node: one process's part of the parameter server."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from adaps import _argument_checks, _core, rendezvous
from adaps.errors import AdapsError
from adaps.node_lifetime import open_node
from adaps.node_options import (
    TECHNIQUES,
    NodeOptions,
    checked_agreement,
    checked_path,
    checked_policy,
    checked_settings,
)
from adaps.tables import Table, managed_specs

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]
    from typing_extensions import Unpack

    from adaps._typing import Int64Like
    from adaps.checkpoint import CheckpointWorker, Export, Restored
    from adaps.checkpoint.table_export import Exports

__all__ = ["CURRENT_COUNTERS", "TECHNIQUES", "Node"]


CURRENT_COUNTERS = frozenset({"ids_assigned", "queued_bytes", "resident_bytes", "rows_stored", "slots"})
"""Names of the counters of `Node.stats` that are current values. All others only grow."""
_log = logging.getLogger("adaps")
_MOST_POSTED_BYTES = 4 << 20
"""Maximum size of a posted text. A much longer one would end the connections to the rendezvous store."""
_BUSY = 0.8
"""Fraction of a node's life. Channels that were busy for longer probably delayed its workers."""
_SHORTEST_LIFE = 1.0
"""Seconds of a node's life from which this fraction means something."""


class Node:
    """The part of the parameter server in one process: a cluster of one node, or of torchrun's environment.

    A node is a context manager. The normal end of its body closes the node together with all others. An
    exception in the body ends it at once, so that the other nodes raise `PeerLost` instead of waiting for it.
    A process may also end without closing its node. With exit code 0, the node serves its rows until all
    other nodes end, at most for `stall_timeout`. After an uncaught exception, ``sys.exit(1)`` or a signal,
    the other nodes raise `PeerLost`.

    Parameters
    ----------
    tables : sequence of Table
        Tables of the cluster, equal on every node.
    **options : NodeOptions
        All other arguments, as keywords. `NodeOptions` describes them and their defaults.

    Notes
    -----
    Nodes prove to each other that they have the job's secret. On one host, the user's processes exchange it
    automatically. Nodes on several hosts need the same secret in the environment variable ADAPS_SECRET, or in
    a file that only the user can read and that ADAPS_SECRET_FILE names.

    Raises
    ------
    PolicyError
        If the policy does not fit the tables or the number of nodes, or contains a setting that the server
        does not execute.
    RendezvousError
        If nodes are missing at the end of `connect_timeout`, the environment is incomplete, nodes on several
        hosts have no secret or listen at loopback addresses, or nodes differ in their `agreement`.
    """

    def __init__(self, tables: Sequence[Table], **options: Unpack[NodeOptions]) -> None:
        self._described = tuple(tables)
        for table in self._described:
            _check_table(table)
        settings = checked_settings(options)
        timeout = _argument_checks.seconds("connect_timeout", options.get("connect_timeout", 60.0))
        agreement = checked_agreement(options)
        self.policy = checked_policy(options)
        """Policy of the tables, if one was given."""
        place = rendezvous.place_in_environment()
        self.workers = settings.workers
        """Number of worker threads of this node."""
        self.rank = 0 if place is None else place.rank
        """Rank of this node."""
        self.world_size = 1 if place is None else place.world_size
        """Number of nodes."""
        self.peer_timeout = settings.peer_timeout
        """Time in seconds after which a silent node counts as lost."""
        self.stall_timeout = settings.stall_timeout
        """Time in seconds after which a node counts as lost if it is alive but other nodes wait for it."""
        specs = self._specs(checked_path(options))
        is_bounded = any(spec.memory > 0 or spec.evict != _core.Evict.NONE for spec in specs)
        self.uses_intent = self.world_size > 1 or is_bounded
        """Whether intent has an effect: on several nodes, or if a table evicts rows or has limited memory."""
        deadline = time.monotonic() + timeout
        self._rendezvous: rendezvous.Rendezvous | None = None
        if place is not None:
            self._rendezvous = rendezvous.rendezvous_at(place, deadline, agreement)
        self._core = open_node(specs, settings, self._rendezvous, deadline)
        self._channels, self._opened = settings.channels, time.monotonic()
        self._posts: dict[str, str] = {}
        self._tables = {table.name: table for table in self._core.tables()}
        self._life = secrets.token_hex(8) if self._rendezvous is None else self._rendezvous.life
        self._checkpoint_workers: dict[int, CheckpointWorker] = {}
        self._exports: Exports | None = None
        self._making_exports = threading.Lock()

    def __enter__(self) -> Node:
        if self._core.closed:
            raise AdapsError("this node is closed and cannot be entered: make a new one")
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

    def _specs(self, path: str | None) -> list[_core.TableSpec]:
        """Return the tables for the core, with the folder for rows that do not fit into memory."""
        if self.policy is None:
            return [table.spec() for table in self._described]
        return managed_specs(self._described, self.policy, self.world_size, path)

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
        """Return a table by its name.

        Parameters
        ----------
        name : str
            Name of the `Table`.

        Raises
        ------
        KeyError
            If there is no such table.
        """
        try:
            return self._tables[name]
        except KeyError:
            hint = _argument_checks.nearest(name, self._tables)
            raise KeyError(f"no table {name!r}{hint}; there are {', '.join(self._tables)}") from None

    def worker(self, index: int) -> _core.Worker:
        """Return the worker of a thread.

        Parameters
        ----------
        index : int
            Index from 0 to ``workers - 1``. Every call with an index returns the same worker.

        Raises
        ------
        IndexError
            If the index is negative, or not less than ``workers``.
        AdapsError
            If the node is closed.
        """
        return self._core.worker(index)

    def checkpoint(
        self, directory: str | os.PathLike[str], *, worker: int = 0, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Write the tables of all nodes, values and optimizer states, to files. Collective.

        Every worker of every node must call this with its own index, and be in no other call. The checkpoint
        contains all earlier writes of all workers. After a failure at any moment, the directory still
        contains its previous checkpoint.

        Parameters
        ----------
        directory : path
            Directory, equal for all workers, on a file system that all nodes share. It is created if needed,
            and its current checkpoint is replaced. The format is safetensors: see `adaps.checkpoint`.
        worker : int
            Index of the calling worker.
        extra : mapping of str to NumPy array or JSON value, optional
            Values that `restore` returns to this worker.

        Raises
        ------
        CheckpointError
            On every worker, if a file could not be written, for instance because the disk is full.
        """
        self._checkpoint_worker(worker).write(Path(directory), extra or {})

    def restore(
        self,
        directory: str | os.PathLike[str],
        *,
        worker: int = 0,
        check: Callable[[Restored], None] | None = None,
    ) -> Restored:
        """Restore the tables of all nodes from a checkpoint; the number of nodes may differ. Collective.

        Every worker of every node must call this with its own index. The tables must match the checkpoint,
        except for learning rates, which are also restored. Clocks continue from the clocks of the checkpoint.

        Parameters
        ----------
        directory : path
            Directory that was given to `checkpoint`, equal for all workers.
        worker : int
            Index of the calling worker.
        check : callable, optional
            Function that raises an exception if the caller cannot use the result. It is called with the
            result before anything is changed.

        Returns
        -------
        adaps.checkpoint.Restored
            The values that this worker added to the checkpoint, and the number of its writers.

        Raises
        ------
        CheckpointError
            On every worker, if there is no complete checkpoint in the directory, a file is damaged or cannot
            be read, a table differs, a `check` failed, or memory is too small for a second copy of this
            node's rows. Nothing is changed. Only an error that not all rows could be overwritten, because the
            disk is full that has the rows of a table with limited memory, leaves some rows overwritten.
        """
        return self._checkpoint_worker(worker).restore(Path(directory), check)

    def export(
        self, directory: str | os.PathLike[str], *, tables: Sequence[str] | None = None, worker: int = 0
    ) -> Export:
        """Start to write the values of tables, all from one moment, during training. Collective.

        Every worker of every node must call this with its own index, and be in no other call. The call
        returns when the rows are copied, which takes as much memory as they have; threads write the files.
        The export contains all earlier writes of all workers. If a previous export is still being written,
        the call first waits until it is complete.

        The first export of a node contains all rows. Later exports to the same directory contain the rows
        that changed after the previous export, and some rows that moved between nodes. When the changes are
        as large as the first export, or the directory no longer contains the previous export, the next export
        contains all rows again. `load_export` reads them, and so does any program that reads safetensors.

        On a single node with numbered steps (`adaps.optimizers`), all rows first catch up with the steps
        without a gradient. This changes most rows between two exports. On several nodes, the export contains
        the values that workers read.

        Parameters
        ----------
        directory : path
            Directory, equal for all workers, on a file system that all nodes share. It is created if needed.
            After a failure, it contains the previous export.
        tables : sequence of str, optional
            Names of the tables, equal for all workers and all exports to the directory. Default: all tables.
        worker : int
            Index of the calling worker.

        Returns
        -------
        adaps.checkpoint.Export
            Handle to wait until the export is written. `close` also waits for it.

        Raises
        ------
        CheckpointError
            On every worker, if the directory cannot be written, is in use by another job, or contains
            checkpoints or exports of other tables, or if there is not enough memory for the copies.
        KeyError
            If a table does not exist. The error names it.
        TypeError
            If `tables` is a single name, or empty.
        """
        # loads NumPy, which other calls do not need
        from adaps.checkpoint.table_export import Exporter, Exports

        with self._making_exports:
            if self._exports is None:
                self._exports = Exports(self, self._core, self._described, self._life)
        return Exporter(self._exports, worker).export(Path(directory), tables)

    def check(self) -> None:
        """Raise `PeerLost` if another node is lost; never blocks."""
        self._core.check()

    def post(self, name: str, text: str) -> None:
        """Publish a short text for all workers of all nodes. The text is not secret.

        Parameters
        ----------
        name : str
            Name by which `posted` finds the text.
        text : str
            Text of at most 4 MiB, which replaces an earlier text of the same name.

        Raises
        ------
        TypeError, ValueError
            If the text is not a string, is too long, or cannot be encoded as UTF-8.
        """
        if not isinstance(text, str):
            raise TypeError(f"the text of {name!r} is {text!r}; it must be a string")
        if (size := len(text.encode())) > _MOST_POSTED_BYTES:
            raise ValueError(f"the text of {name!r} has {size} bytes; give at most {_MOST_POSTED_BYTES}")
        if self._rendezvous is None:
            self._posts[name] = text
        else:
            self._rendezvous.store.set(self._rendezvous.key(f"post/{name}"), text)

    def posted(self, name: str) -> str | None:
        """Return the text that was posted under a name, or None if there is none yet. Does not wait for it.

        Parameters
        ----------
        name : str
            Name that was given to `post`, on any node.
        """
        if self._rendezvous is None:
            return self._posts.get(name)
        key = self._rendezvous.key(f"post/{name}")
        store = self._rendezvous.store
        return store.get(key).decode() if store.check([key]) else None

    def meeting_place(self, name: str) -> tuple[Store, str]:
        """Return a store for another connection of this cluster's nodes, such as a process group.

        Parameters
        ----------
        name : str
            Name of the connection, the same on every node.

        Returns
        -------
        torch.distributed.Store
            Store with keys that no other name uses.
        str
            Address where this node listens for other nodes.

        Raises
        ------
        AdapsError
            If the cluster has only one node.
        """
        if self._rendezvous is None:
            raise AdapsError("a cluster of one node has no other nodes to meet")
        return self._rendezvous.store_of(name), self._rendezvous.host

    def stats(self) -> dict[str, float]:
        """Return all counters of this node by name. After the node was closed, returns the last values.

        Counters are sums over its workers and channels since it was created, except those in
        `CURRENT_COUNTERS`, which are current values. The reference lists each with its unit.
        """
        return self._core.stats()

    def trace(self, keys: Int64Like) -> None:
        """Record all later events of these keys on this node.

        The current state is recorded first: an owned key as ``alloc``, and a replica or an intent as if it
        began now.

        Parameters
        ----------
        keys : int64 array, CPU tensor or sequence of int
            Keys, C-contiguous. They are traced in addition to the keys of earlier calls.

        Raises
        ------
        IndexError
            If a key does not exist. The error names the first one.
        """
        self._core.trace(keys)

    def trace_events(self) -> list[_core.TraceEvent]:
        """Return the recorded events of the traced keys, oldest first."""
        return self._core.trace_events()

    def _checkpoint_worker(self, worker: int) -> CheckpointWorker:
        from adaps.checkpoint import CheckpointWorker  # loads NumPy, which other calls do not need

        if worker not in self._checkpoint_workers:
            self._checkpoint_workers[worker] = CheckpointWorker(
                self._core, self._described, self.rank, self.world_size, self.workers, worker, self._life
            )
        return self._checkpoint_workers[worker]

    def _end_checkpoints(self) -> None:
        for worker in self._checkpoint_workers.values():
            worker.end()
        if self._exports is not None:
            self._exports.end()

    def close(self) -> None:
        """Wait until every node has called this, and end this node. Collective; a second call does nothing.

        Worker threads must have ended their calls. An export that is being written is completed first. A
        warning is logged if the node's channels were busy nearly all the time.
        """
        if self._exports is not None:
            self._exports.await_last()
        if not self._core.closed:
            self._warn_of_busy_channels(time.monotonic() - self._opened)
        self._core.close()
        self._end_checkpoints()

    def _warn_of_busy_channels(self, seconds: float) -> None:
        """Log a warning if the channels were busy nearly all the time since the node was opened."""
        busy = 1e-6 * self.stats()["channel_micros"] / self._channels
        if seconds < _SHORTEST_LIFE or busy < _BUSY * seconds:
            return
        threads = "channel was" if self._channels == 1 else f"{self._channels} channels were"
        _log.warning(
            f"the {threads} busy for {busy / seconds:.0%} of the {seconds:.0f} s of node {self.rank}, so its "
            f"workers may have waited for rows. Give all nodes channels={2 * self._channels}, if they have "
            "free cores"
        )


def _check_table(table: Any) -> None:
    if not isinstance(table, Table):
        raise TypeError(f"tables holds {table!r}; it must be a sequence of adaps.Table")
