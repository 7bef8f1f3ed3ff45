"""Forked ranks, each of which sends reports through a pipe."""

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn


def report(descriptor: int, **message: Any) -> None:
    """Send a message from a rank, in one call, so that it arrives whole."""
    os.write(descriptor, (json.dumps(message) + "\n").encode())


class Forks:
    """Forks of this process by rank; must be created before the first fork.

    Attributes
    ----------
    processes : dict of int to int
        The process ids of the running ranks.
    said : dict of int to dict
        The last value that each rank has reported under each name.
    ended : dict of int to int
        The exit codes of the ranks that have ended by themselves.
    """

    def __init__(self) -> None:
        self.processes: dict[int, int] = {}
        self.said: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, int] = {}
        self._pipes: dict[int, int] = {}
        self._unread: dict[int, bytes] = {}
        self._selector = selectors.DefaultSelector()

    def start(self, rank: int, live: Callable[[int], NoReturn]) -> None:
        """Fork a rank that calls `live` with the descriptor for its reports."""
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            for other in (reader, *self._pipes.values()):
                os.close(other)
            self._selector.close()
            live(writer)
        os.close(writer)
        self.processes[rank], self._pipes[rank] = process, reader
        self.said[rank], self._unread[rank] = {}, b""
        self._selector.register(reader, selectors.EVENT_READ, rank)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.processes[rank], number)

    def read(self, seconds: float) -> list[dict[str, Any]]:
        """New messages, as soon as there are any or a rank ends, and at the latest after `seconds`."""
        messages = []
        for key, _ in self._selector.select(max(seconds, 0.0)):
            rank = key.data
            data = os.read(self._pipes[rank], 1 << 16)
            if not data:
                self._selector.unregister(self._pipes[rank])
                self.ended[rank] = os.waitstatus_to_exitcode(os.waitpid(self.processes[rank], 0)[1])
            *lines, self._unread[rank] = (self._unread[rank] + data).split(b"\n")
            for message in map(json.loads, lines):
                self.said[rank].update(message)
                messages.append(message)
        return messages

    def await_all(
        self, ranks: Iterable[int], what: str, done: Callable[[int], bool], seconds: float
    ) -> list[dict[str, Any]]:
        """Read until all these ranks are done; TimeoutError if one is not in time, or ends before."""
        messages, deadline = list[dict[str, Any]](), time.monotonic() + seconds
        ranks = list(ranks)
        while missing := [rank for rank in ranks if not done(rank)]:
            stuck = [rank for rank in missing if rank in self.ended]
            if stuck or time.monotonic() > deadline:
                raise TimeoutError(
                    f"ranks {stuck or missing}: no {what} within {seconds:g} s: {self.ended}, {self.said}"
                )
            messages += self.read(deadline - time.monotonic())
        return messages

    def bury(self, rank: int) -> None:
        """Kill a rank, if it has not ended, and forget it."""
        process, pipe = self.processes.pop(rank), self._pipes.pop(rank)
        if rank not in self.ended:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            self._selector.unregister(pipe)
        self.ended.pop(rank, None)
        os.close(pipe)

    def close(self) -> None:
        for rank in list(self.processes):
            self.bury(rank)
        self._selector.close()
