"""A `torch.distributed.TCPStore` for the rendezvous, with calls that end at a deadline."""

from __future__ import annotations

import atexit
import errno
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from adaps.errors import RendezvousError
from adaps.rendezvous import host_addresses

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

__all__ = ["TimedStore", "open_store", "wait_for"]

T = TypeVar("T")

_POLL_SECONDS = 0.02
"""Seconds between two checks of the store."""

_LEAST = 1.0
"""Minimum time in seconds for an answer of a busy store, even if less of the timeout remains."""

_LONGER = 5.0
"""Seconds by which the store's own timeout is longer than the deadline, because the error here is clearer."""

_SILENT = (
    "does not answer: the process that holds it, rank 0 or torchrun's agent, is stopped, cut off or kept busy"
)
_BACKLOG = 4096  # the kernel reduces it to its own limit


def open_store(host: str, port: int, *, hosts: bool, deadline: float) -> Store:
    """Connect to the store at `host`:`port`, and create it first if this process `hosts` it.

    Raises
    ------
    RendezvousError
        If the port is in use, or no process listens there before the deadline.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if not hosts:
        _await_listener(host, port, deadline)
    while True:
        # Opening the server does not wait for other processes.
        seconds = max(deadline - time.monotonic(), 5 * _LEAST if hosts else _LEAST)
        listener = _listener(host, port, deadline) if hosts else None
        # multi_tenant: a process group of the user in this process may use the same server.
        store = partial(
            TCPStore,
            host,
            port,
            is_master=hosts,
            timeout=timedelta(seconds=seconds + _LONGER),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=None if listener is None else listener.detach(),
        )
        try:
            return _answer(store, seconds)
        except TimeoutError:
            raise RendezvousError(f"the rendezvous store at {host}:{port} {_SILENT}") from None
        except RuntimeError as error:
            # A server under load may close a connection, so another one is tried.
            if hosts or time.monotonic() >= deadline:
                used = "EADDRINUSE" in str(error)
                reason = "the port is in use" if used else str(error).partition("\n")[0]
                verb = "opened" if hosts else "used"
                raise RendezvousError(
                    f"the rendezvous store cannot be {verb} at {host}:{port}: {reason}"
                ) from error
        time.sleep(_POLL_SECONDS)


def wait_for(store: Store | TimedStore, keys: list[str], deadline: float) -> bool:
    """Block until the store has all keys. Returns False at the deadline."""
    # The store's own wait ignores Ctrl-C and prints a warning at the timeout, so it is not used.
    while not store.check(keys):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


class TimedStore:
    """A connection to a store. Its calls end at a deadline even if the store's process is stopped.

    The store's own calls wait for an answer without a limit, and ignore Ctrl-C.
    """

    def __init__(self, store: Store | TimedStore, deadline: float, given_up: Callable[[], Any]) -> None:
        self._store = store
        self._deadline = deadline
        self._given_up = given_up

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self._ask(partial(self._store.set, key, value))

    def get(self, key: str) -> bytes:
        """Read an existing value."""
        return self._ask(partial(self._store.get, key))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0, and return the sum."""
        return self._ask(partial(self._store.add, key, amount))

    def check(self, keys: list[str]) -> bool:
        """Whether all these keys exist."""
        return self._ask(partial(self._store.check, keys))

    @property
    def store(self) -> Store:
        """The store itself."""
        return self._store.store if isinstance(self._store, TimedStore) else self._store

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return _answer(call, max(self._deadline - time.monotonic(), _LEAST))
        except TimeoutError:
            self._given_up()  # a late answer would be mistaken for the answer to the next call
            raise RendezvousError(f"the rendezvous store {_SILENT}") from None


def _listener(host: str, port: int, deadline: float) -> socket.socket | None:
    """Listen at `host` only, because the store itself would listen on all interfaces.

    If `host` is an address that is translated on its way to this host, the listener uses all interfaces. None
    leaves the choice to the store: a name may have other addresses on other hosts, and if the port is taken,
    this process may have a store there, which is shared.
    """
    where = host_addresses.literal(host)
    if where is None:
        return None
    try:
        return _listening(where, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        if error.errno != errno.EADDRNOTAVAIL:
            raise RendezvousError(
                f"the rendezvous store cannot be opened at {host}:{port}: {error.strerror}"
            ) from error
    try:
        listener = _listening("::" if ":" in where else "0.0.0.0", port)
    except OSError:
        return None
    try:
        _await_listener(host, port, deadline)
    except RendezvousError as error:
        listener.close()
        raise RendezvousError(
            f"MASTER_ADDR={host} is not an address of this host, on which rank 0 runs: set it to an "
            f"address of "
            f"this host on every rank ({error.__cause__})"
        ) from error
    return listener


def _listening(where: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in where else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _answer(call: Callable[[], T], seconds: float) -> T:
    """Return or raise the result of a call; TimeoutError if it takes longer, but it continues in a thread."""
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised again in the calling thread
            errors.append(error)
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        if not done.wait(seconds):
            raise TimeoutError
    finally:
        if not done.is_set():
            _given_up.append(thread)
    if errors:
        raise errors[0]
    return results[0]


_given_up: list[threading.Thread] = []
"""Threads in a call of a store whose result is no longer awaited."""


@atexit.register
def _await_given_up() -> None:
    """Wait at the process's end for calls that were given up, but not longer than an attempt to connect.

    Python ends a thread that returns from a call while the interpreter shuts down. In the store's C++ code
    this aborts the process.
    """
    end = time.monotonic() + _LONGER + _LEAST
    for thread in _given_up:
        thread.join(max(end - time.monotonic(), 0.0))


def _await_listener(host: str, port: int, deadline: float) -> None:
    while True:
        try:
            with socket.create_connection((host, port), timeout=1.0):
                return
        except socket.gaierror as error:
            raise RendezvousError(
                f"the address {host!r} of the rendezvous cannot be resolved: {error.strerror}"
            ) from error
        except OSError as error:
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"no process opened the rendezvous store at {host}:{port} in time (rank 0 is missing): "
                    f"{error.strerror or error}"
                ) from error
        # Polling is the only way, because no event signals that the port is open.
        time.sleep(0.05)
