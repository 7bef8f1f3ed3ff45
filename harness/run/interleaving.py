"""Runs that take turns, so that noise on the machine affects all of them equally.

Only one of the runs does anything at a time: from its launch to its first epoch, for an epoch with its
evaluation or for some steps, and from its last epoch to its end. Its workers are connected to the run's
socket. A turn is over when each worker has sent that it waits for its turn or, at the end of the epoch, for
the other workers. At the next turn the workers receive the duration of the other runs' turns and continue.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from adabench.harness.errors import UsageError
from adabench.harness.machine.scratch import scratch_folder

T = TypeVar("T")

_WAITS, _AT_END, _RUNS = b"w", b"e", b"r"
_SECONDS = struct.Struct("=d")

# The minimum size of sockaddr_un on all systems, in bytes.
_LONGEST_ADDRESS = 103
_LONGEST_FOLDER = _LONGEST_ADDRESS - len("/adabench-12345678/12")


class TurnTaker:
    """A worker of a run that takes turns: waits until the run's turn comes.

    Parameters
    ----------
    address : str or None
        Address of the socket of the run; None for a run that does not take turns and never waits.
    steps : int
        Steps of a turn; 0 for whole epochs.

    Attributes
    ----------
    paused_seconds : float
        Seconds of other runs' turns so far. The value is complete after `wait`, `step` and `synchronized`.
    """

    def __init__(self, address: str | None, steps: int = 0) -> None:
        self.paused_seconds = 0.0
        self._steps, self._left = steps, steps
        self._connection: socket.socket | None = None
        if address is not None:
            self._connection = socket.socket(socket.AF_UNIX)
            self._connection.connect(address)

    def wait(self) -> None:
        """Return when this run may go on; `ConnectionError` if the harness is gone."""
        if self._connection is None:
            return
        self._left = self._steps
        self._connection.sendall(_WAITS)
        self._hear(0)

    def step(self) -> None:
        """Begin a training step; wait first if the turn's steps are done."""
        if self._connection is not None and self._steps:
            if not self._left:
                self.wait()
            self._left -= 1

    def at_end(self) -> None:
        """End the epoch's last step: this worker now waits only for the run's other workers."""
        if self._connection is not None:
            self._connection.sendall(_AT_END)

    def synchronized(self) -> None:
        """Resume after all workers have reached the epoch's end."""
        if self._connection is not None:
            try:
                while True:
                    self._hear(socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._connection.sendall(_RUNS)

    def close(self) -> None:
        """Report that this worker does not wait for turns any more."""
        if self._connection is not None:
            self._connection.close()

    def _hear(self, flags: int) -> None:
        assert self._connection is not None
        # Seconds are sent in one piece, which a local socket delivers in one piece.
        message = self._connection.recv(_SECONDS.size, flags)
        if not message:
            raise ConnectionError("the harness that lets the runs take turns is gone")
        self.paused_seconds += _SECONDS.unpack(message)[0]


class Interleaved(Protocol[T]):
    """One of the runs that take turns."""

    @property
    def workers(self) -> int:
        """Number of workers; each makes a `TurnTaker`."""

    def begin_turn(self) -> None:
        """Called before each of its turns."""

    def execute(self, turn_socket: str, given_up: Callable[[], bool]) -> T:
        """Run to the end or until the run is given up; called in a new thread."""

    def record(self, result: T) -> None:
        """Called with the result of `execute` when the run has ended."""


def in_turns(runs: Sequence[Interleaved[T]]) -> None:
    """Execute runs, one at a time, in the given order.

    Raises `UsageError` if the sockets cannot be made where temporary files go, and the first exception of any
    run after all have ended.
    """
    given_up = threading.Event()
    with scratch_folder("sockets of runs that take turns") as folder:
        living: list[_Turns[T]] = []
        try:
            for index, run in enumerate(runs):
                living.append(_Turns(run, folder / f"{index}", given_up.is_set))
            while living:
                for turns in list(living):
                    turns.run.begin_turn()
                    if turns.take_next():
                        continue
                    living.remove(turns)
                    turns.run.record(turns.result())
        finally:
            given_up.set()
            for turns in living:
                turns.close()


class _Turns(Generic[T]):
    """Turns of one run: its socket, the state of its workers, and the thread that executes it."""

    def __init__(self, run: Interleaved[T], address: Path, given_up: Callable[[], bool]) -> None:
        self.run = run
        self._given_up = given_up
        self._address = str(address)
        if len(os.fsencode(self._address)) > _LONGEST_ADDRESS:
            raise UsageError(
                f"the folder for temporary files, {address.parent.parent}, has too long a name for the "
                f"sockets of runs that take turns: set TMPDIR to one of at most {_LONGEST_FOLDER} bytes"
            )
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.listen(run.workers)
        self._end, self._at_end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for one in (self._listener, self._end):
            self._selector.register(one, selectors.EVENT_READ)
        self._workers: dict[socket.socket, bytes] = {}
        self._since = 0.0
        self._thread = threading.Thread(target=self._execute, daemon=True)
        self._started = False
        self._result: Future[T] = Future()

    def take_next(self) -> bool:
        """Let the run go on until its turn is over; False if it has ended instead."""
        if self._started:
            self._let_go_on(_SECONDS.pack(time.monotonic() - self._since))
        else:
            self._started = True
            self._thread.start()
        while not self._turn_is_over():
            # Read all messages before deciding, as a worker reports that it runs again before any other
            # worker can wait for its next epoch.
            for ready in self._ready():
                if ready is self._end:
                    return False
                if ready is self._listener:
                    self._selector.register(self._listener.accept()[0], selectors.EVENT_READ)
                elif said := _received(ready):
                    self._workers[ready] = said
                else:
                    self._forget(ready)
        self._since = time.monotonic()
        return True

    def result(self) -> T:
        """The result of the run, once it has ended; closes its sockets."""
        self.close()
        return self._result.result()

    def close(self) -> None:
        """Wait for the run's end, which is near if it has been given up."""
        if self._started:
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._forget(_socket(key.fileobj))
        self._selector.close()
        self._at_end.close()

    def _execute(self) -> None:
        try:
            self._result.set_result(self.run.execute(self._address, self._given_up))
        except BaseException as error:
            self._result.set_exception(error)
        finally:
            self._at_end.send(b".")

    def _ready(self) -> Iterator[socket.socket]:
        for key, _ in self._selector.select():
            yield _socket(key.fileobj)

    def _turn_is_over(self) -> bool:
        said = self._workers.values()
        return _WAITS in said and sum(one in (_WAITS, _AT_END) for one in said) == self.run.workers

    def _let_go_on(self, seconds: bytes) -> None:
        """Send all workers the duration of the other runs' turns; workers that wait then continue."""
        # Workers at the epoch's end come first: they read this, without waiting for it, as soon as the last
        # worker has joined them. That worker joins after its own message.
        for connection in sorted(self._workers, key=lambda one: self._workers[one] == _WAITS):
            if self._workers[connection] == _WAITS:
                self._workers[connection] = _RUNS
            # A process that has died cannot receive the message. Its run ends with the reason.
            with contextlib.suppress(ConnectionError):
                connection.sendall(seconds)

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._workers.pop(connection, None)
        connection.close()


def _received(connection: socket.socket) -> bytes:
    """Return the last message of a worker; empty if the worker is gone."""
    try:
        return connection.recv(64)[-1:]
    except ConnectionError:
        return b""


def _socket(registered: object) -> socket.socket:
    assert isinstance(registered, socket.socket)
    return registered
