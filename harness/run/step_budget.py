"""The time of training steps by part, without gaps."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

from adabench.results.record import Budget

LOOP = "other"
"""The remaining time: the loop itself, and work of backends between the timed calls."""


class StepClock:
    """The time of one thread, divided into parts that may be nested.

    Every moment between `start` and `stop` belongs to exactly one part, the innermost one that is open; so
    the seconds of all parts add up to the time in between.

    Attributes
    ----------
    seconds : dict of str to float
        Seconds so far, by part.
    steps : int
        Training steps so far.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.steps = 0
        self._open: list[str] = []
        self._since = 0.0

    @property
    def running(self) -> bool:
        return bool(self._open)

    def start(self) -> None:
        self._open, self._since = [LOOP], time.perf_counter()

    def stop(self) -> None:
        self._pass()
        self._open.clear()

    def enter(self, part: str) -> None:
        self._pass()
        self._open.append(part)

    def leave(self) -> None:
        self._pass()
        self._open.pop()

    def _pass(self) -> None:
        now = time.perf_counter()
        part = self._open[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now


class StepBudget:
    """The time budget of one process; each worker is a thread.

    Calls of functions that `timed` has wrapped are counted between a worker's `start` and `stop`.
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._clocks: list[StepClock] = []
        self._worker_threads: set[int] = set()
        self._times = ThreadTimes()
        self._background: dict[str, float] = {}

    def start(self) -> None:
        """Begin the training of the calling worker."""
        with self._lock:
            if not self._running():
                self._times = ThreadTimes()
            self._worker_threads.add(threading.get_native_id())
            clock = getattr(self._of_thread, "clock", None)
            if clock is None:
                clock = self._of_thread.clock = StepClock()
                self._clocks.append(clock)
            clock.start()

    def stop(self) -> None:
        """Interrupt the training of the calling worker."""
        with self._lock:
            self._of_thread.clock.stop()
            if not self._running():
                for name, seconds in self._times.since(self._worker_threads).items():
                    self._background[name] = self._background.get(name, 0.0) + seconds

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted as `part`."""
        of_thread = self._of_thread

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            clock = getattr(of_thread, "clock", None)
            if clock is None or not clock.running:
                return function(*args, **kwargs)
            clock.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                clock.leave()

        return call

    def count_step(self) -> None:
        """Begin another step of the calling worker."""
        clock = getattr(self._of_thread, "clock", None)
        if clock is not None and clock.running:
            clock.steps += 1

    def batches(self, loader: Iterable[Any]) -> _TimedLoader:
        """The loader, with the time for each batch counted; each batch is a step."""
        return _TimedLoader(loader, self)

    @contextmanager
    def backward_timed(self) -> Iterator[None]:
        """Count backward passes of this process as a part while the context lasts."""
        before = torch.Tensor.backward
        torch.Tensor.backward = self.timed("backward", before)  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.Tensor.backward = before  # type: ignore[method-assign]

    def result(self, rank: int) -> Budget:
        """The budget so far; no worker may be training."""
        parts: dict[str, float] = {}
        for clock in self._clocks:
            for part, seconds in clock.seconds.items():
                parts[part] = parts.get(part, 0.0) + seconds
        return Budget(
            rank=rank,
            steps=sum(clock.steps for clock in self._clocks),
            seconds=sum(parts.values()),
            parts=parts,
            background=self._background,
        )

    def _running(self) -> bool:
        return any(clock.running for clock in self._clocks)


class _TimedLoader:
    """A loader that times its batches and has the attributes of the wrapped loader."""

    def __init__(self, loader: Iterable[Any], budget: StepBudget) -> None:
        self._loader = loader
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        fetch = self._budget.timed("loader", next)
        batches = self._budget.timed("loader", iter)(self._loader)
        while True:
            try:
                batch = fetch(batches)
            except StopIteration:
                return
            self._budget.count_step()
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)


class ThreadTimes:
    """CPU seconds of this process's threads until now."""

    def __init__(self) -> None:
        self._at = _thread_seconds()

    def since(self, without: set[int]) -> dict[str, float]:
        """CPU seconds since then by thread name, without the given native ids and threads that have ended."""
        found: dict[str, float] = {}
        for thread, seconds in _thread_seconds().items():
            spent = seconds - self._at.get(thread, 0.0)
            if thread not in without and spent > 0:
                name = _name(thread)
                found[name] = found.get(name, 0.0) + spent
        return found


def _thread_seconds() -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}


def _name(thread: int) -> str:
    """The kernel's name of a thread (Linux), by default the name of the process."""
    try:
        return Path(f"/proc/{os.getpid()}/task/{thread}/comm").read_text(encoding="utf-8").strip()
    except OSError:  # The thread has just ended, or this is not Linux.
        return "threads"
