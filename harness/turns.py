"""Runs that take turns, an epoch each, so that what disturbs the machine disturbs all of them alike.

Only one of the runs does anything at a time: from its launch to its first epoch, for an epoch with its
evaluation, and from its last epoch to its end. Before every epoch each worker of a run says on a connection
to the run's socket that it waits, and goes on when it is answered.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from adabench.harness.scratch import scratch_folder

__all__ = ["Participant", "Turn", "in_turns"]

T = TypeVar("T")

_BYTE = b"."


class Turn:
    """A worker's side: waits until its run's turn comes.

    Parameters
    ----------
    address : str or None
        The run's socket; None for a run that has the machine for itself, which never waits.
    """

    def __init__(self, address: str | None) -> None:
        self.waited_seconds = 0.0
        self._connection: socket.socket | None = None
        if address is not None:
            self._connection = socket.socket(socket.AF_UNIX)
            self._connection.connect(address)

    def wait(self) -> None:
        """Return when this run may train its next epoch.

        Raises
        ------
        ConnectionError
            If the harness is gone.
        """
        if self._connection is None:
            return
        start = time.monotonic()
        self._connection.sendall(_BYTE)
        if not self._connection.recv(1):
            raise ConnectionError("the harness that lets the runs take turns is gone")
        self.waited_seconds += time.monotonic() - start

    def close(self) -> None:
        """Say that there is nothing more to wait for."""
        if self._connection is not None:
            self._connection.close()


class Participant(NamedTuple, Generic[T]):
    """One of the runs.

    Attributes
    ----------
    execute : callable
        Given its socket's address and a question whether to give up, runs it to its end in a thread.
    workers : int
        How many `Turn` it makes.
    began : callable
        Called before each of its turns.
    ended : callable
        Given what `execute` returned.
    """

    execute: Callable[[str, Callable[[], bool]], T]
    workers: int
    began: Callable[[], None]
    ended: Callable[[T], None]


def in_turns(participants: Sequence[Participant[T]]) -> None:
    """Execute runs, one of which goes on at a time, in the order given.

    Raises
    ------
    Exception
        The first one of any `execute`, `began` or `ended`, after all have ended.
    """
    given_up = threading.Event()
    with scratch_folder() as folder:
        living = [
            _Member(participant, folder / f"{index}", given_up.is_set)
            for index, participant in enumerate(participants)
        ]
        try:
            while living:
                for member in list(living):
                    member.participant.began()
                    if member.goes_on():
                        continue
                    living.remove(member)
                    member.participant.ended(member.result())
        finally:
            given_up.set()
            for member in living:
                member.close()


class _Member(Generic[T]):
    def __init__(self, participant: Participant[T], address: Path, given_up: Callable[[], bool]) -> None:
        self.participant = participant
        self._given_up = given_up
        self._address = str(address)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.listen(participant.workers)
        self._end, self._at_end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for one in (self._listener, self._end):
            self._selector.register(one, selectors.EVENT_READ)
        self._waiting: list[socket.socket] = []
        self._thread = threading.Thread(target=self._execute, daemon=True)
        self._started = False
        self._returned: list[T] = []
        self._error: BaseException | None = None

    def goes_on(self) -> bool:
        """Let the run go on until all its workers wait again; False if it has ended instead."""
        if not self._started:
            self._started = True
            self._thread.start()
        for connection in self._waiting:
            self._answer(connection)
        self._waiting = []
        while len(self._waiting) < self.participant.workers:
            for ready in self._ready():
                if ready is self._end:
                    return False
                if ready is self._listener:
                    self._selector.register(self._listener.accept()[0], selectors.EVENT_READ)
                elif self._asks(ready):
                    self._waiting.append(ready)
                else:
                    self._forget(ready)
        return True

    def result(self) -> T:
        """What the run returned, once it has ended; closes what belongs to it."""
        self.close()
        if self._error is not None:
            raise self._error
        return self._returned[0]

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
            self._returned.append(self.participant.execute(self._address, self._given_up))
        except BaseException as error:
            self._error = error
        finally:
            self._at_end.send(_BYTE)

    def _ready(self) -> Iterator[socket.socket]:
        for key, _ in self._selector.select():
            yield _socket(key.fileobj)

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.sendall(_BYTE)
        except ConnectionError:
            # Its process has died meanwhile: the run's end, which says so, follows.
            self._forget(connection)

    def _asks(self, connection: socket.socket) -> bool:
        try:
            return bool(connection.recv(1))
        except ConnectionError:
            return False

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()


def _socket(registered: object) -> socket.socket:
    assert isinstance(registered, socket.socket)
    return registered
