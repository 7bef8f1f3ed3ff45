"""Where a training is in its data: kept in checkpoints, and found again after a restore."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from autoada.training.random_state import RandomState, random_state, set_random_state


class Positioned(Protocol):
    """A loader that knows where it is; `AdaDataLoader` is one."""

    position: LoaderState


class LoaderState:
    """Counts the batches of a loader, pass by pass.

    Attributes
    ----------
    epoch : int
        Passes that have ended, complete or not.
    batches : int
        Batches of the present pass that the training loop got.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.batches = 0
        self._fetched = 0
        self._start: RandomState | None = None
        self._resumes = False
        self._pass: Epoch | None = None

    def state(self) -> tuple[dict[str, Any], RandomState]:
        """What `resume` takes: numbers, and the random generators at the start of the pass."""
        numbers = {"epoch": self.epoch, "batches": self.batches, "fetched": self._fetched}
        return numbers, self._start or {}

    def resume(self, numbers: dict[str, Any], start: RandomState | None, share: float = 1.0) -> None:
        """Have the next pass go on where a checkpoint was written.

        Parameters
        ----------
        numbers, start
            From `state`; without `start`, or if it is empty, the generators stay as they are.
        share : float
            By how much longer a pass is now, as its batches are shared by another number of workers.
        """
        self.epoch = numbers["epoch"]
        self.batches = round(numbers["batches"] * share)
        self._fetched = numbers["fetched"] if share == 1 else self.batches
        self._start = start or None
        self._resumes = self._fetched > 0
        self._pass = None

    def begin(self, loader: Iterable[Any]) -> Epoch:
        """The batches of a pass that have not been used yet."""
        if self._resumes:
            self._resumes = False
            self._pass = Epoch(self, *self._skipped(loader))
        else:
            self.batches = self._fetched = 0
            self._start = random_state()
            self._pass = Epoch(self, iter(loader), deque())
        return self._pass

    @property
    def resumes(self) -> bool:
        """Whether the next pass goes on where a checkpoint was written."""
        return self._resumes

    def join(self, batches: Iterator[Any], start: RandomState, used: int) -> Epoch:
        """A pass that began in evaluation mode, with the generators in `start`, goes on in training mode."""
        self.batches = self._fetched = used
        self._start = start
        self._pass = Epoch(self, batches, deque())
        return self._pass

    def _skipped(self, loader: Iterable[Any]) -> tuple[Iterator[Any], deque[Any]]:
        """What follows the batches that had been fetched, and those of them that were not used."""
        present = random_state()
        if self._start is not None:
            set_random_state(self._start)
        batches = iter(loader)
        again: deque[Any] = deque()
        for number, batch in enumerate(islice(batches, self._fetched)):
            if number >= self.batches:
                again.append(batch)
        if self._start is not None:
            set_random_state(present)
        else:
            self._start = present
        return batches, again

    def fetched(self, by: Epoch) -> None:
        """A pass has got a batch from the loader."""
        if by is self._pass:
            self._fetched += 1

    def handed_out(self, by: Epoch) -> None:
        """The training loop has got a batch of a pass."""
        if by is self._pass:
            self.batches += 1

    def ended(self, by: Epoch) -> None:
        """A pass is over, or was given up."""
        if by is self._pass:
            self.epoch += 1
            self.batches = self._fetched = 0
            self._start = self._pass = None


class Epoch(Iterator[Any]):
    """The batches of one pass; it counts only as long as no other has begun and nothing was restored."""

    def __init__(self, position: LoaderState, batches: Iterator[Any], again: deque[Any]) -> None:
        self._position = position
        self._batches = batches
        self._again = again

    def __next__(self) -> Any:
        if self._again:
            return self._again.popleft()
        batch = next(self._batches)
        self._position.fetched(self)
        return batch

    def deliver(self) -> None:
        """The training loop gets a batch."""
        self._position.handed_out(self)

    def end(self) -> None:
        """No further batch will be asked for: the loader's processes may end, whoever keeps the pass."""
        self._batches = iter(())
        self._again.clear()
        self._position.ended(self)
