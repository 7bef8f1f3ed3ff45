"""Position of a training in its data: stored in checkpoints, and continued after a restore."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

from autoada.prediction.random_generators import RandomState, random_state, set_random_state


class Positioned(Protocol):
    """A loader that counts its batches; `AdaDataLoader` is one."""

    position: LoaderState


@dataclass(eq=False)
class Epoch:
    """The batches of one epoch that are left, and the numbers of batches so far."""

    batches: Iterator[Any]
    used: int = 0
    """Number of batches that the training loop got."""
    fetched: int = 0
    """Number of batches that the loader returned."""


class LoaderState:
    """Position in the batches of a loader, epoch by epoch.

    Only the current epoch counts. It is replaced when another one begins or a checkpoint is restored.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.start: RandomState = {}
        """States of the random generators at the start of the current epoch; empty if they are unknown."""
        self.resumes = False
        """Whether the next epoch continues where a checkpoint was written."""
        self._current = self._restored = Epoch(iter(()))

    def state(self) -> tuple[dict[str, Any], RandomState]:
        """Return the counts, and the random generators at the start of the epoch, as `resume` takes them."""
        fetched = max(self._current.fetched, self._restored.fetched)
        return {"epoch": self.epoch, "batches": self._current.used, "fetched": fetched}, self.start

    def resume(self, numbers: dict[str, Any], start: RandomState | None, share: float = 1.0) -> None:
        """Let the next epoch continue where a checkpoint was written.

        Parameters
        ----------
        numbers : dict
            First result of `state`.
        start : dict, optional
            Second result of `state`. The random generators do not change if it is None or empty.
        share : float
            Length of an epoch now ÷ its length in the checkpoint, which had another number of workers.
        """
        self.epoch = numbers["epoch"]
        used = round(numbers["batches"] * share)
        self._current = self._restored = Epoch(iter(()), used, numbers["fetched"] if share == 1 else used)
        self.start = start or {}
        self.resumes = self._restored.fetched > 0

    def begin(self, loader: Iterable[Any]) -> Epoch:
        """Begin an epoch with the batches that have not been used yet."""
        if self.resumes:
            self.resumes = False
            used = self._restored.used
            self._current = Epoch(self._unused(loader), used, used)
            return self._current
        start = random_state()
        return self.continue_in_training(iter(loader), start, used=0)

    def continue_in_training(self, batches: Iterator[Any], start: RandomState, used: int) -> Epoch:
        """Continue in training mode an epoch that began in evaluation mode with the generators in `start`."""
        self.start = start
        self._restored = Epoch(iter(()))
        self._current = Epoch(batches, used, used)
        return self._current

    def end(self, epoch: Epoch, begun: bool) -> None:
        """End an epoch, complete or not; processes of the loader may also end.

        If the loop took nothing from an iterator, `begun` is false and no epoch is counted.
        """
        epoch.batches = iter(())
        if self._current is epoch:
            self.epoch += begun
            self.start = {}
            self._current = self._restored = Epoch(iter(()))

    def _unused(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return the batches that were fetched but not used, and those that were not fetched."""
        present = random_state()
        if self.start:
            set_random_state(self.start)
        batches = iter(loader)
        used, fetched = self._restored.used, self._restored.fetched
        for _ in range(used):
            with suppress(Exception):  # The loop has handled the errors of these batches.
                next(batches)
        again = deque(islice(batches, fetched - used))
        if self.start:
            set_random_state(present)
        else:
            self.start = present
        # Only the loop refers to a batch that it got, as with batches of the loader.
        return chain((again.popleft() for _ in range(len(again))), batches)
