"""The batches of a pass: fetched ahead, and returned as if they were fetched in their turn."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from autoada.loader.held_batch import HeldBatch
from autoada.loader.loader_generators import draw_again, generators_of, parts_of
from autoada.prediction.random_generators import global_generators, same_state, set_states, states_of
from autoada.training.loader_state import Epoch

_log = logging.getLogger("autoada")


class LoaderSource(Iterable[Any]):
    """A loader with iterators that continue at the end of the previous pass's loop."""

    def __init__(self, loader: Iterable[Any], alone: bool) -> None:
        self.generators = generators_of(loader, alone)
        self.alone = alone
        self.runs_ahead: bool | None = None
        """Whether batches may be fetched before their turn, because a fetch draws nothing from the global
        generators; None while this is unknown."""
        self._loader = loader
        self.left: deque[HeldBatch] = deque()
        """Batches that passes have fetched and not used, for the next iterator that shares the data."""
        parts: list[Any] = [loader]
        self._data: list[Tensor] = []
        """Tensors of the data set that the loop may change."""
        self._writes = 0
        if isinstance(loader, DataLoader) and loader.num_workers == 0:
            parts += [loader.dataset, loader.sampler, loader.batch_sampler]
            self._data += [each for each in parts_of(loader.dataset, Tensor) if not each.is_inference()]
        self._goes_on = any(isinstance(part, Iterator) for part in parts)
        self._shares = self._goes_on or bool(getattr(loader, "persistent_workers", False))
        self.streams: list[BatchStream] = []
        """Passes that have not ended."""
        self._warned: set[str] = set()

    def __iter__(self) -> Iterator[Any]:
        self.take_over()
        if not self._goes_on:
            self.left.clear()
        batches = iter(self._loader)
        return _SharedIterator(self, batches) if self._shares else batches

    def remove(self, stream: BatchStream) -> None:
        """Remove a pass that has ended.

        Its unused batches go to the next pass if the loader will not return them again.
        """
        self.streams.remove(stream)
        if self._goes_on:
            self.left.extendleft(reversed(stream.holds))
        elif stream.holds and self._shares:
            self._warn_once(
                "a pass was left while batches were fetched ahead, and the loader's processes stay: if they "
                "draw random numbers, the next passes have others than with plain PyTorch; use "
                "persistent_workers=False, or give AdaDataLoader lookahead=0"
            )

    def exposed(self) -> list[HeldBatch]:
        """Keep the contents of all held batches, and return the batches that other code may change."""
        return [
            item
            for stream in self.streams
            for item in stream.holds
            if item.may_change and item.keep().may_change
        ]

    def take_over(self, by: BatchStream | None = None) -> None:
        """Take the batches that other passes hold, if the iterators of the loader share their data."""
        if self._shares:
            for stream in self.streams:
                if stream is not by:
                    self.left.extendleft(reversed(stream.give_way()))

    def count_writes(self) -> bool:
        """Return whether tensors of the data set were written since the last call."""
        before, self._writes = self._writes, sum(tensor._version for tensor in self._data)
        return before != self._writes

    def warn_of_writes(self) -> None:
        """Warn once if the loop wrote to tensors of the data set since the last fetch."""
        if self.count_writes():
            self._warn_once(
                "the loop has changed a tensor of the data set, but the next batches were fetched before the "
                "change: if they depend on it, give AdaDataLoader lookahead=0"
            )

    def learn(self, drew: bool, first: bool) -> None:
        """Learn from a batch that was fetched in its turn; the first one may draw to begin the pass."""
        if not drew:
            self.runs_ahead = True
        elif not first:
            self.runs_ahead = False

    def may_run_ahead(self) -> bool:
        """Return whether a batch may be fetched before its turn; if not, report this once."""
        if self.runs_ahead is False:
            self._warn_once(
                "the loader draws random numbers for each batch from the global generators, so each batch is "
                "fetched in its turn and rows are not announced ahead: give the data set or its collate_fn a "
                "generator of its own, or load in processes (num_workers=1)"
            )
        return bool(self.runs_ahead)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning(message)


class _SharedIterator(Iterator[Any]):
    """Iterator that shares its data with other iterators."""

    def __init__(self, source: LoaderSource, batches: Iterator[Any]) -> None:
        self._source = source
        self._batches = batches

    def __next__(self) -> Any:
        left = self._source.left
        while left:
            item = left.popleft()
            draw_again(self._source.generators, item.draws)
            if item.end is None:
                return item.batch
            if not isinstance(item.end, StopIteration):
                raise item.end
        return next(self._batches)


class BatchStream(Iterator[HeldBatch]):
    """Fetches the batches of one pass.

    A fetch before its turn has no effect that the program can observe. The random generators get back their
    earlier states, and they get the states after the fetch when the batch is handed out.
    """

    def __init__(self, epoch: Epoch, source: LoaderSource) -> None:
        self._epoch = epoch
        self._source = source
        self.holds: deque[HeldBatch] = deque()
        """Batches that were fetched but not handed out."""
        self._fetched = 0
        self._turn_begins = True
        """Whether the program has run since the pass began or a batch was handed out."""
        self._gave_way = False
        source.streams.append(self)

    def __next__(self) -> HeldBatch:
        """Fetch the next batch, or return the loader's error when its turn comes.

        Raises
        ------
        StopIteration
            If there are no more data, or an error of the loader is held that comes after other batches.
        RuntimeError
            If the end was found with random numbers that were drawn again since, or another iterator of a
            loader has taken batches that were fetched for this one.
        """
        if self._gave_way:
            raise RuntimeError(
                "another iterator of the loader has taken the batches that were fetched ahead for this one, "
                "as they share the data (the loader or its data set is an iterator, or it has "
                "persistent_workers=True): use one at a time, or give AdaDataLoader lookahead=0"
            )
        self._follow_program()
        if not self.holds or self.holds[-1].end is None:
            self._fetched += 1
            self.holds.append(self._fetch_ahead() if self.holds else self._fetch_in_turn())
        item = self.holds[-1]
        if item.end is None:
            return item
        if len(self.holds) > 1:
            raise StopIteration
        if not isinstance(item.end, StopIteration):
            return item
        self.holds.clear()
        draw_again(self._source.generators, item.draws)
        raise item.end

    def take(self) -> Any:
        """Fetch the next batch and hand it out; returns as `deliver`."""
        source, epoch = self._source, self._epoch
        if self.holds or self._gave_way or source.runs_ahead is None or len(source.streams) > 1:
            return self.deliver(next(self))
        self._turn_begins = True
        batch = answer(epoch.batches)
        epoch.fetched += 1
        epoch.used += 1
        return batch

    def deliver(self, item: HeldBatch) -> Any:
        """Hand out the oldest batch, and return its contents, or the `HeldBatch` with the loader's error.

        Raises
        ------
        RuntimeError
            If the batch was fetched before its turn with random numbers that were drawn again since, or its
            memory was changed in the meantime in a way that PyTorch does not count.
        """
        self._follow_program()
        self.holds.remove(item)
        self._turn_begins = True
        if item.is_kept:
            item.check()
            draw_again(self._source.generators, item.draws)
        self._epoch.used += 1
        if item.end is None:
            return item.batch
        # An error counts when the loop gets it, so that a restored pass meets it again.
        self._epoch.fetched += 1
        return item

    def give_way(self) -> list[HeldBatch]:
        """Pass the held batches to another pass; this pass then cannot continue."""
        held = list(self.holds)
        self._gave_way |= bool(held)
        self.holds.clear()
        return held

    def close(self) -> None:
        """End the pass."""
        self._source.remove(self)
        self.holds.clear()

    def _follow_program(self) -> None:
        """Take over changes that the program made to held batches in the turn that has ended."""
        if self._turn_begins:
            self._turn_begins = False
            if self.holds:
                self._source.warn_of_writes()
            for item in self._source.exposed():
                item.follow_program()

    def _fetch_in_turn(self) -> HeldBatch:
        if self._source.runs_ahead is not None:
            return self._fetch()
        generators = global_generators() if self._source.alone else []
        before = states_of(generators)
        item = self._fetch()
        drew = not same_state(before, states_of(generators))
        self._source.learn(drew, self._fetched == 1)
        return item

    def _fetch_ahead(self) -> HeldBatch:
        generators = self._source.generators
        before = states_of(generators)
        start = next((held.draws[1] for held in reversed(self.holds) if held.draws), before)
        if start is not before:
            set_states(generators, start)
        item = self._fetch()
        after = states_of(generators)
        drew = not same_state(start, after)
        if drew or start is not before:
            set_states(generators, before)
        if drew:
            item.draws = (start, after)
        item.keep()
        return item

    def _fetch(self) -> HeldBatch:
        self._source.take_over(by=self)
        exposed = self._source.exposed()
        try:
            item = HeldBatch([next(self._epoch.batches)])
            self._epoch.fetched += 1
        except Exception as error:
            item = HeldBatch([None], error)
        self._source.count_writes()
        for each in exposed:
            each.undo_fetch(item.keep().memory)
        return item


def answer(batches: Iterator[Any]) -> Any:
    """Return the next batch of a loader, or a `HeldBatch` with its error."""
    try:
        return next(batches)
    except StopIteration:
        raise
    except Exception as error:
        return HeldBatch([None], error)


def answers(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield what `answer` returns until the end of the data."""
    with suppress(StopIteration):
        while True:
            yield answer(batches)
