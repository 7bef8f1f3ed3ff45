"""AdaPM's Python interface, so that a script written for ``import adapm`` runs on this parameter server.

``import adaps.compat.adapm as adapm`` offers `setup`, `scheduler`, `Server` and `Worker` with AdaPM's
signatures. It reads AdaPM's environment variables: DMLC_NUM_SERVER, DMLC_ROLE, DMLC_PS_ROOT_URI and
DMLC_PS_ROOT_PORT. DMLC_NODE_HOST is needed if a server does not listen on the interface that leads to the
root. Without these variables, torchrun's environment is used. Without either, the server is the only one.

Values start at 0, and `push` adds to them. The script computes the optimizer's updates, as with AdaPM.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from adaps import _argument_checks, _core, rendezvous
from adaps.compat._presence import Presence, await_servers
from adaps.errors import AdapsError, RendezvousError
from adaps.initializers import Uniform
from adaps.node_lifetime import open_node
from adaps.node_options import NodeSettings, checked_channels, listening_address, wants_frame_mac
from adaps.rendezvous.environment import MAX_NODES
from adaps.rendezvous.host_addresses import address_towards
from adaps.sampling import SAMPLING_SCHEMES, LogUniform, RowDistribution, Sampling
from adaps.tables import Table

if TYPE_CHECKING:
    from adaps._typing import Float32Like, Int64Like, SamplingScheme

__all__ = ["Server", "Worker", "scheduler", "setup"]

_VARIABLES = ("DMLC_NUM_SERVER", "DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
_TECHNIQUES = {
    "all": _core.Technique.ADAPTIVE,
    "replication_only": _core.Technique.REPLICATION,
    "relocation_only": _core.Technique.RELOCATION,
}
_CONNECT_TIMEOUT = 60.0
_DISTRIBUTIONS: Mapping[str, RowDistribution] = {"uniform": Uniform(), "log-uniform": LogUniform()}
_DONE = -1


def setup(num_keys: int, num_threads: int, use_techniques: str | None = None, num_channels: int = -1) -> None:
    """Describe the server that this process runs.

    Parameters
    ----------
    num_keys : int
        Number of keys; keys are in ``[0, num_keys)``.
    num_threads : int
        Number of worker threads of each server.
    use_techniques : str, optional
        Technique: ``all`` (default), ``replication_only`` or ``relocation_only``.
    num_channels : int
        Number of communication threads; -1 for the default.
    """
    global _setup
    technique = _argument_checks.one_of("technique", use_techniques or "all", _TECHNIQUES)
    workers = _argument_checks.count("num_threads", num_threads, most=_core.MAX_WORKERS)
    options = NodeSettings(
        workers=workers,
        channels=checked_channels(None if num_channels == -1 else num_channels, workers, "num_channels"),
        technique=_TECHNIQUES[technique],
        network=os.environ.get("ADAPS_NETWORK", "loopback"),
        listen=listening_address(os.environ.get("DMLC_NODE_HOST")),
        frame_mac=wants_frame_mac(None),
    )
    _setup = _argument_checks.count("num_keys", num_keys), options


def scheduler(num_keys: int, num_threads: int) -> None:
    """Run the rendezvous of the servers. Returns when all have shut down.

    Raises
    ------
    RendezvousError
        If some servers have not arrived within a minute.
    AdapsError
        If a server ends without `Server.shutdown`, is killed, or has lost another server.
    """
    _argument_checks.count("num_keys", num_keys)
    _argument_checks.count("num_threads", num_threads)
    _check_role("scheduler")
    host, port, servers = _root(os.environ)
    store = rendezvous.open_store(host, port, hosts=True, deadline=time.monotonic() + _CONNECT_TIMEOUT)
    await_servers(store, servers, _CONNECT_TIMEOUT)


class Server:
    """The keys that this process owns. `setup` must be called first.

    Parameters
    ----------
    value_lengths : int or 1-D tensor
        Number of floats of a value: one number for all keys, or one number for each key. Float tensors are
        accepted.
    """

    def __init__(self, value_lengths: Any) -> None:
        if _setup is None:
            raise AdapsError("a Server needs setup(num_keys, num_threads) before")
        num_keys, self._options = _setup
        self._tables = [
            Table(f"keys from {first}", rows, length)
            for first, rows, length in _runs(value_lengths, num_keys)
        ]
        self._workers = 0
        deadline = time.monotonic() + _CONNECT_TIMEOUT
        # Reports to the scheduler process, if there is one, that this server is alive.
        self._presence: Presence | None = None
        self._others = self._meet(deadline)
        self._barriers = 0
        self._node = self._open(deadline)

    def my_rank(self) -> int:
        """Return this server's number among all servers."""
        return 0 if self._others is None else self._others.rank

    def barrier(self) -> None:
        """Block until every server has called this. Collective. Worker threads have a separate barrier."""
        if self._others is None:
            return
        store, barrier = self._others.store, self._others.key(f"barrier/{self._barriers}")
        self._barriers += 1
        if store.add(f"{barrier}/arrived", 1) == self._others.world_size:
            store.set(f"{barrier}/complete", "")
        while not rendezvous.wait_for(store, [f"{barrier}/complete"], time.monotonic() + 1.0):
            self._node.check()

    def shutdown(self) -> None:
        """End this server when all worker threads have ended. Collective."""
        if self._node.closed:
            return
        try:
            self._node.close()
        except AdapsError as error:
            self._leave(str(error))
            raise
        self._leave("")

    def enable_sampling_support(
        self, scheme: str, with_replacement: bool, distribution: str, min: int, max: int
    ) -> None:
        """Let workers draw samples of the keys in ``[min, max)``. Collective, before the first `Worker`.

        Parameters
        ----------
        scheme : str
            Sampling scheme: ``naive``, ``preloc``, ``pool`` or ``local``, as in `adaps.Sampling`.
        with_replacement : bool
            Whether a key may occur twice in one sample.
        distribution : str
            Distribution: ``uniform`` or ``log-uniform``. With ``log-uniform`` and n keys, ``min + k`` has the
            probability log((k + 2) / (k + 1)) / log(n + 1).
        min, max : int
            Range of the keys. All these keys must have values of one length.
        """
        drawn = _DISTRIBUTIONS[_argument_checks.one_of("distribution", distribution, _DISTRIBUTIONS)]
        _argument_checks.one_of("sampling scheme", scheme, SAMPLING_SCHEMES)
        sampling = Sampling(drawn, cast("SamplingScheme", scheme), replacement=bool(with_replacement))
        if self._workers or any(table.sampling is not None for table in self._tables):
            raise AdapsError("enable_sampling_support is called once, before the first Worker is made")
        tables: list[Table] = []
        first, found = 0, False
        for table in self._tables:
            end = first + table.rows
            if first <= min < max <= end:
                found = True
                parts = (first, min, None), (min, max, sampling), (max, end, None)
                tables += [
                    Table(f"keys from {start}", stop - start, table.length, sampling=how)
                    for start, stop, how in parts
                    if start < stop
                ]
            else:
                tables.append(table)
            first = end
        if not found:
            raise ValueError(
                f"samples are to be drawn of keys {min} to {max - 1}: they must be in [0, {first}), at least "
                "one, and all have values of one length"
            )
        self._tables = tables
        self._node.close()  # it was not used yet, and the keys are in other tables from now on
        self._node = self._open(time.monotonic() + _CONNECT_TIMEOUT)

    def _open(self, deadline: float) -> _core.Node:
        return open_node([table.spec() for table in self._tables], self._options, self._others, deadline)

    def _leave(self, reason: str) -> None:
        if self._presence is not None:
            self._presence.leave(reason)
            atexit.unregister(self._left_without_shutdown)

    def _left_without_shutdown(self) -> None:
        assert self._presence is not None
        self._leave(f"server {self._presence.rank} ended without shutdown()")

    def _meet(self, deadline: float) -> rendezvous.Rendezvous | None:
        """Return the rendezvous of the servers; None for a single server."""
        if not any(name in os.environ for name in _VARIABLES):
            place = rendezvous.place_in_environment()
            return None if place is None else rendezvous.rendezvous_at(place, deadline)
        _check_role("server")
        host, port, servers = _root(os.environ)
        store = rendezvous.open_store(host, port, hosts=False, deadline=deadline)
        presence = Presence(store, servers)
        if presence.rank >= servers:
            raise RendezvousError(f"more than DMLC_NUM_SERVER={servers} servers came to {host}:{port}")
        self._presence = presence
        atexit.register(self._left_without_shutdown)
        if servers == 1:
            return None
        return rendezvous.Rendezvous(
            store, presence.rank, servers, "adapm", interface=partial(address_towards, host, port)
        )


class Worker:
    """The interface of worker thread `customer_id` of a server.

    Keys are int64 arrays and values float32 arrays of PyTorch or NumPy. Operations return a timestamp for
    `wait`, which is -1 if they are complete.
    """

    def __init__(self, customer_id: int, server: Server) -> None:
        self._worker = server._node.worker(customer_id)
        server._workers += 1
        self._tables = server._node.tables()
        sampled = next((i for i, table in enumerate(server._tables) if table.sampling is not None), None)
        self._sampled = None if sampled is None else self._tables[sampled]
        self.num_keys = server._node.num_keys
        """Number of keys."""

    def pull(self, keys: Int64Like, vals: Float32Like, asynchronous: bool = False) -> int:
        """Write the values of the keys to `vals`."""
        return _timestamp(self._worker.pull(keys, vals, asynchronous))

    def push(self, keys: Int64Like, vals: Float32Like, asynchronous: bool = False) -> int:
        """Add `vals` to the values of the keys; both arrays may be changed after the call."""
        return _timestamp(self._worker.push(*_kept(keys, vals, asynchronous), asynchronous))

    def set(self, keys: Int64Like, vals: Float32Like, asynchronous: bool = False) -> int:
        """Overwrite the values of the keys; both arrays may be changed after the call."""
        return _timestamp(self._worker.set(*_kept(keys, vals, asynchronous), asynchronous))

    def prepare_sample(self, K: int, start: int, end: int = 0) -> int:
        """Return the number of a new sample of `K` keys for the clocks [start, end), 0 for start + 1."""
        return self._worker.prepare_sample(self._drawn_from(), K, start, end or start + 1)

    def pull_sample(self, id: int, keys: Int64Like, vals: Float32Like, asynchronous: bool = False) -> int:
        """Write the keys of a prepared sample to `keys`, of the same size, and their values to `vals`."""
        drawn: Any = keys
        timestamp = _timestamp(self._worker.pull_sample(id, drawn, vals, asynchronous))
        drawn += self._drawn_from().first_key
        return timestamp

    def _drawn_from(self) -> _core.NodeTable:
        if self._sampled is None:
            raise AdapsError("no sampling is configured: call Server.enable_sampling_support before")
        return self._sampled

    def intent(self, keys: Int64Like, start: int, end: int = 0) -> int:
        """Announce access to the keys in this worker's clocks [start, end); an `end` of 0 means start + 1."""
        self._worker.intent(keys, start, end or start + 1)
        return _DONE

    def advance_clock(self) -> None:
        """Add one to this worker's clock."""
        self._worker.advance_clock()

    def current_clock(self) -> int:
        """Return this worker's clock."""
        return self._worker.current_clock

    def wait(self, timestamp: int) -> None:
        """Wait for an asynchronous operation."""
        self._worker.wait(timestamp)

    def waitall(self) -> None:
        """Wait for all asynchronous operations of this worker."""
        self._worker.waitall()

    def wait_sync(self) -> None:
        """Wait until this server's writes are applied, and earlier writes of all servers are visible here."""
        self._worker.wait_sync()

    def wait_replica_sync(self) -> None:
        """Call `wait_sync`. This is its former name."""
        warnings.warn("wait_replica_sync is now called wait_sync", DeprecationWarning, stacklevel=2)
        self._worker.wait_sync()

    def barrier(self) -> None:
        """Wait until every worker of every server has called this. Collective."""
        self._worker.barrier()

    def begin_setup(self) -> None:
        """Wait before the first values are set. Collective."""
        self._worker.begin_setup()

    def end_setup(self) -> None:
        """Make earlier writes of all workers visible to all workers. Collective."""
        self._worker.end_setup()

    def finalize(self) -> None:
        """Exclude this worker from collective operations."""
        self._worker.finalize()

    def get_key_size(self, key_id: int = 0) -> int:
        """Return the number of floats in a key's value."""
        for table in self._tables:
            if 0 <= key_id - table.first_key < table.rows:
                return table.length
        raise IndexError(f"key {key_id} is not in [0, {self.num_keys})")


_setup: tuple[int, NodeSettings] | None = None


def _kept(keys: Any, vals: Any, asynchronous: bool) -> tuple[Any, Any]:
    """Return copies of the arrays for an asynchronous call, as AdaPM makes them."""
    return (_copy(keys), _copy(vals)) if asynchronous else (keys, vals)


def _copy(array: Any) -> Any:
    if hasattr(array, "detach"):
        return array.detach().clone()
    return array.copy() if hasattr(array, "copy") else array


def _timestamp(ticket: int | None) -> int:
    return _DONE if ticket is None else ticket


def _runs(value_lengths: Any, num_keys: int) -> Iterator[tuple[int, int, int]]:
    """Yield first key, number of keys and value length of each run of keys with one value length."""
    if not hasattr(value_lengths, "tolist") or getattr(value_lengths, "ndim", 1) == 0:
        yield 0, num_keys, _argument_checks.count("value_lengths", value_lengths)
        return
    lengths = value_lengths.tolist()
    if len(lengths) != num_keys:
        raise ValueError(
            f"value_lengths has {len(lengths)} elements; setup announced {num_keys} keys, and each needs one"
        )
    first = 0
    for length, run in groupby(lengths):
        rows = sum(1 for _ in run)
        if length != int(length):
            raise ValueError(f"the value length of key {first} is {length}; it must be a whole number")
        yield first, rows, int(length)
        first += rows


def _check_role(expected: str) -> None:
    role = rendezvous.variable(os.environ, "DMLC_ROLE", _VARIABLES)
    if role != expected:
        raise RendezvousError(f"DMLC_ROLE is {role!r} in a process that runs a {expected}")


def _root(environment: Mapping[str, str]) -> tuple[str, int, int]:
    """Return host and port of the scheduler, and the number of servers."""
    servers = rendezvous.integer_variable(environment, "DMLC_NUM_SERVER", _VARIABLES)
    if not 1 <= servers <= MAX_NODES:
        raise RendezvousError(f"DMLC_NUM_SERVER is {servers}; it must be in [1, {MAX_NODES}]")
    host = rendezvous.variable(environment, "DMLC_PS_ROOT_URI", _VARIABLES)
    return host, rendezvous.integer_variable(environment, "DMLC_PS_ROOT_PORT", _VARIABLES), servers
