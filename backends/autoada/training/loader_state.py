"""Position of a training in its data: stored in checkpoints, and continued after a restore."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from autoada.prediction.random_generators import RandomState, random_state, set_random_state


class Positioned(Protocol):
    """A loader that counts its batches; `AdaDataLoader` is one."""

    position: LoaderState


class LoaderState:
    """Counts the batches of a loader, epoch by epoch."""

    def __init__(self) -> None:
        self.epoch = self.batches = self.fetched = 0
        self.start: RandomState = {}
        """States of the random generators at the start of the current epoch; empty if they are unknown."""
        self.resumes = False
        """Whether the next epoch continues where a checkpoint was written."""
        self.current: Epoch | None = None

    def state(self) -> tuple[dict[str, Any], RandomState]:
        """Return the counts, and the random generators at the start of the epoch, as `resume` takes them."""
        return {"epoch": self.epoch, "batches": self.batches, "fetched": self.fetched}, self.start

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
        self.batches = round(numbers["batches"] * share)
        self.fetched = numbers["fetched"] if share == 1 else self.batches
        self.start = start or {}
        self.resumes = self.fetched > 0
        self.current = None

    def begin(self, loader: Iterable[Any]) -> Epoch:
        """Begin an epoch with the batches that have not been used yet."""
        if self.resumes:
            self.resumes = False
            self.current = Epoch(self, *self._skipped(loader))
            return self.current
        start = random_state()
        return self.continue_in_training(iter(loader), start, used=0)

    def continue_in_training(self, batches: Iterator[Any], start: RandomState, used: int) -> Epoch:
        """Continue in training mode an epoch that began in evaluation mode with the generators in `start`."""
        self.batches = self.fetched = used
        self.start = start
        self.current = Epoch(self, batches, deque())
        return self.current

    def _skipped(self, loader: Iterable[Any]) -> tuple[Iterator[Any], deque[Any]]:
        """Return the batches that were not fetched, and the batches that were fetched but not used."""
        present = random_state()
        if self.start:
            set_random_state(self.start)
        batches = iter(loader)
        for _ in islice(batches, self.batches):
            pass
        again = deque(islice(batches, self.fetched - self.batches))
        if self.start:
            set_random_state(present)
        else:
            self.start = present
        return batches, again


class Epoch(Iterator[Any]):
    """The batches of one epoch; they count only while no other has begun and nothing was restored."""

    def __init__(self, state: LoaderState, batches: Iterator[Any], again: deque[Any]) -> None:
        self._state = state
        self._batches = batches
        self._again = again

    def __next__(self) -> Any:
        if self._again:
            return self._again.popleft()
        batch = next(self._batches)
        if self._state.current is self:
            self._state.fetched += 1
        return batch

    def deliver(self) -> None:
        """Count a batch that the training loop gets."""
        if self._state.current is self:
            self._state.batches += 1

    def end(self, begun: bool = True) -> None:
        """End the epoch, complete or not; processes of the loader may also end.

        If the loop took nothing from an iterator, `begun` is false and no epoch is counted.
        """
        self._batches = iter(())
        self._again.clear()
        state = self._state
        if state.current is self:
            state.epoch += begun
            state.batches = state.fetched = 0
            state.start, state.current = {}, None
