"""Processes that alternate by a seed at every call of a store, a disk or a clock, in simulated time.

Each process is a thread, and only one of them runs at a time. A killed process runs until its next call,
where its stack is unwound; a stopped process gets no turns until its time has come. Threads that a process
has started take turns like processes, and are killed and stopped with it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Killed", "Process", "Violation", "World"]

MOST_TURNS = 60_000
STAYS = 0.6
"""Probability that a process keeps its turn after a call."""


class Killed(BaseException):
    """Unwinds a process that is no more."""


class Violation(AssertionError):
    """A broken invariant, which ends the simulation."""


class Process:
    """A process, or a thread of one, from its first call to its end."""

    def __init__(self, world: World, name: str, work: Callable[[], Any], of: Process | None) -> None:
        self.number = len(world.processes) + 1
        self.name = name
        self.of = of
        self.threads: list[Process] = []
        self.born = world.now
        self.died: float | None = None
        self.dead = self.ended = False
        self.wakes = self.stopped_until = world.now
        self.result: Any = None
        self.baton = threading.Lock()
        self.baton.acquire()
        self._world = world
        self._work = work
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __repr__(self) -> str:
        return f"{self.name} (process {self.number})"

    @property
    def is_gone(self) -> bool:
        """Whether it does nothing any more."""
        return self.dead or self.ended

    @property
    def ready_at(self) -> float:
        """When it can have a turn."""
        stopped_until = self.stopped_until if self.of is None else self.of.stopped_until
        return max(self.wakes, stopped_until)

    def is_ready(self, now: float) -> bool:
        """Whether it can have a turn."""
        return not self.ended and (self.dead or self.ready_at <= now)

    def _run(self) -> None:
        self.baton.acquire()
        try:
            if not self.dead:
                self.result = self._work()
        except Killed:
            pass
        except BaseException as error:
            if not self.dead or isinstance(error, Violation):
                self._world.failure = self._world.failure or error
        self.ended = True
        self.died = self._world.now if self.died is None else self.died
        self._world.kill_threads(self)
        self._world.at_death(self)
        self._world.baton.release()


class World:
    """Everything that is simulated; `at_turn` is called before every call of a process."""

    def __init__(self, seed: int) -> None:
        self.numbers = random.Random(seed)
        self.now = 0.0
        self.turns = 0
        self.doing = ""
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.failure: BaseException | None = None
        self.at_turn: Callable[[], None] = lambda: None
        self.at_death: Callable[[Process], None] = lambda process: None
        self.baton = threading.Lock()
        self.baton.acquire()

    def spawn(self, name: str, work: Callable[[], Any], of: Process | None = None) -> Process:
        """Start a process, or a thread of one."""
        process = Process(self, name, work, of)
        self.processes.append(process)
        if of is not None:
            of.threads.append(process)
        process.thread.start()
        return process

    @property
    def me(self) -> Process:
        """The process whose turn it is; the turn of a thread is that of its process."""
        assert self.current is not None
        return self.current if self.current.of is None else self.current.of

    def kill(self, process: Process) -> None:
        """End a process: its locks become free, and it has no further effect."""
        if not process.is_gone:
            process.dead, process.died = True, self.now
            self.kill_threads(process)
            self.at_death(process)

    def kill_threads(self, process: Process) -> None:
        """They end with their process."""
        for thread in process.threads:
            self.kill(thread)

    def turn(self, what: str = "") -> None:
        """Called before each action of a process on the world: others may come first, or it may die here."""
        me, self.doing = self.current, what
        assert me is not None
        if me.dead:
            raise Killed
        self.turns += 1
        self.now += 0.01
        self.at_turn()
        if not me.is_ready(self.now) or me.dead or self.numbers.random() > STAYS:
            self._switch(me)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        me = self.current
        assert me is not None
        if me.dead:
            raise Killed
        self.turns += 1
        self.at_turn()
        me.wakes = self.now + seconds
        self._switch(me)

    def run(self) -> None:
        """Run until all processes have ended; raises the first violation."""
        while self.failure is None and self.turns < MOST_TURNS:
            ready = [process for process in self.processes if process.is_ready(self.now)]
            if ready:
                self._give(self.numbers.choice(ready))
                continue
            left = [process for process in self.processes if not process.ended]
            if not left:
                break
            self.now = min(process.ready_at for process in left)
        endless = self.failure is None and self.turns >= MOST_TURNS
        living = [process for process in self.processes if not process.ended]
        for process in living:
            process.dead = True
            self._give(process)
        if self.failure is not None:
            raise self.failure
        if endless:
            raise Violation(f"no end after {self.turns} turns: {living} are left")

    def _give(self, process: Process) -> None:
        self.current = process
        process.baton.release()
        self.baton.acquire()

    def _switch(self, me: Process) -> None:
        self.baton.release()
        me.baton.acquire()
        if me.dead:
            raise Killed
