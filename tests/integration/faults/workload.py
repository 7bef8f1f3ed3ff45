"""Work with known sums on failing nodes: each life continues from the last checkpoint."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adaps
import adaps.checkpoint
from tests.checkpoint_files import content

ROWS, LENGTH, PUSHED = 2000, 4, 100
EVERY = 10
"""Number of turns between two checkpoints."""

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Workload:
    """The work that all nodes of a cluster do together.

    Attributes
    ----------
    nodes, workers : int
        The number of nodes, and of worker threads on each node.
    directory : Path
        The directory of the checkpoint.
    say : callable
        A function called with ``restored`` (on each node) or ``complete`` (on the leading node) and the
        number of turns.
    time_is_up : callable
        A function that the leading node calls before each checkpoint; it returns whether that is the last
        one.
    """

    nodes: int
    workers: int
    directory: Path
    say: Callable[..., None]
    time_is_up: Callable[[], bool]

    def tables(self) -> list[adaps.Table]:
        return [
            adaps.Table("sums", ROWS, LENGTH),
            adaps.Table(
                "adagrad", ROWS, LENGTH, optimizer=adaps.Adagrad(lr=0.5), init=adaps.Uniform(-1, 1, seed=1)
            ),
            adaps.Table("turns", self.nodes * self.workers, 1),
            adaps.Table("end", 1, 1),
        ]

    def live(self, node: adaps.Node) -> int:
        """Work until the time is up; gives how many turns there were in all lives."""
        with ThreadPoolExecutor(self.workers) as threads:
            return max(threads.map(partial(self._work, node), range(self.workers)))

    def _work(self, node: adaps.Node, worker: int) -> int:
        kv = node.worker(worker)
        number = node.rank * self.workers + worker
        sums, adagrad, turns = (node.table(name).keys for name in ("sums", "adagrad", "turns"))
        turn = 0
        if adaps.checkpoint.exists(self.directory):
            turn = int(node.restore(self.directory, worker=worker).extra["turn"])
        leads = number == 0
        counts = self._counts_until(turn) if leads else np.zeros(ROWS)
        if leads:
            _check_rows(kv, sums(np.arange(ROWS)), counts, turn)
        kv.barrier()
        if worker == 0:
            self.say(restored=turn)
        ones = np.ones((PUSHED, LENGTH), np.float32)
        out = np.empty((PUSHED, LENGTH), np.float32)
        last = np.empty((1, 1), np.float32)
        own = turns(np.array([number]))
        while True:
            for ahead in (2, 5):
                kv.intent(
                    sums(_rows_of(number, turn + ahead)),
                    kv.current_clock + ahead,
                    kv.current_clock + ahead + 2,
                )
            rows = _rows_of(number, turn)
            kv.push(sums(rows), ones, asynchronous=True)
            kv.push_gradients(adagrad(rows), ones, asynchronous=turn % 2 == 0)
            kv.set(own, np.full((1, 1), turn + 1, np.float32))
            kv.pull(own, last)
            if last[0, 0] != turn + 1:
                raise AssertionError(f"worker {number} wrote {turn + 1} and read {last[0, 0]}")
            kv.pull(sums(rows), out)
            kv.advance_clock()
            turn += 1
            if turn % 3 == 0:
                kv.wait_sync()
            if turn % EVERY:
                continue
            if leads and self.time_is_up():
                kv.set(node.table("end").keys([0]), np.ones((1, 1), np.float32))
            node.checkpoint(self.directory, worker=worker, extra={"turn": turn})
            if leads:
                for past in range(turn - EVERY, turn):
                    self._add_turn(counts, past)
                self._compare(counts, turn)
                self.say(complete=turn)
            kv.pull(node.table("end").keys([0]), last)
            kv.barrier()  # so that the next turn's end is not seen here
            if last[0, 0]:
                return turn

    def _add_turn(self, counts: Counts, turn: int) -> None:
        for number in range(self.nodes * self.workers):
            np.add.at(counts, _rows_of(number, turn), 1)

    def _counts_until(self, turn: int) -> Counts:
        counts = np.zeros(ROWS)
        for past in range(turn):
            self._add_turn(counts, past)
        return counts

    def _compare(self, counts: Counts, turn: int) -> None:
        """Check that the files hold every push of every life exactly once, and nothing of lost work."""
        sums, adagrad, turns = (content(self.directory, name) for name in ("sums", "adagrad", "turns"))
        for found, values in ((sums, sums.values), (adagrad, adagrad.state)):
            if not np.array_equal(found.rows, np.unique(found.rows)):
                raise AssertionError("a row is there twice")
            every = np.zeros((ROWS, LENGTH))
            every[found.rows] = values
            if not np.array_equal(every, np.repeat(counts[:, None], LENGTH, axis=1)):
                raise AssertionError(f"turn {turn}: rows {np.flatnonzero(every[:, 0] != counts)} are wrong")
        if not (turns.values == turn).all():
            raise AssertionError(f"turn {turn}: workers wrote {turns.values.ravel()}")


def _rows_of(number: int, turn: int) -> npt.NDArray[np.int64]:
    """The rows that a worker increments in a turn; all workers choose the first rows most often."""
    generator = np.random.default_rng([number, turn])
    return (ROWS * generator.random(PUSHED) ** 2).astype(np.int64)


def _check_rows(kv: Any, keys: Any, counts: Counts, turn: int) -> None:
    """Check that the restored values are the written ones, before any node continues."""
    found = np.empty((ROWS, LENGTH), np.float32)
    kv.pull(keys, found)
    if not np.array_equal(found, np.repeat(counts[:, None], LENGTH, axis=1)):
        raise AssertionError(
            f"turn {turn} was restored with wrong rows {np.flatnonzero(found[:, 0] != counts)}"
        )
