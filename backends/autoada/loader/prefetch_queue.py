"""The batches that a loader fetches before their turn: found, announced, and handed out."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from autoada.loader.intent import KeySource
from autoada.loader.lookahead import Lookahead
from autoada.prediction.row_set import Expected
from autoada.training.training_state import TrainingState


@dataclass
class Item:
    """A batch that was fetched.

    Attributes
    ----------
    batch : object
        The batch.
    clock : int
        That of its use.
    expected : Expected or None
        What it will read, if that is known.
    announced : Tensor or None
        Keys that were announced for it.
    later : list of (str, int or None)
        Tables whose rows will be announced when its use is nearer, or not at all, and how many batches ahead;
        None: as many as the loader.
    """

    batch: Any
    clock: int
    expected: Expected | None = None
    announced: Tensor | None = None
    later: list[tuple[str, int | None]] = field(default_factory=list)


class Ahead:
    """A loop over one loader, as one model takes part in it.

    Parameters
    ----------
    state : TrainingState
        The model's.
    source : KeySource
        Finds rows.
    batches : iterator
        The loader's.
    lookahead : Lookahead
        How many batches to fetch ahead.
    joined : callable
        ``joined(batch)``: the model is called by this loop; the batch is the one in use.
    """

    def __init__(
        self,
        state: TrainingState,
        source: KeySource,
        batches: Iterator[Any],
        lookahead: Lookahead,
        joined: Callable[[Any], None],
    ) -> None:
        self.state = state
        self.loops = state.loops_here()
        self._worker = state.worker
        self._source = source
        self._batches = batches
        self._lookahead = lookahead
        self._joined = joined
        self._queue: deque[Item] = deque()
        self._announced_until = 0
        self._has_joined = False
        self._use: BatchUse | None = None
        self._was_open = state.trial is not None
        self.loops.enter(self, self._join)

    def take(self) -> Item | None:
        """The next batch, after the queue behind it was filled; None at the end."""
        self.loops.end_use(self)
        now = int(self._worker.current_clock)
        if self._queue and self._queue[0].clock != now:  # another loop on the same worker moved the clock
            self._realign(now)
        starting = not self._queue
        if starting:
            if self.state.is_free:
                self.state.begin_loop()
            if not self._fetch(now):
                return None
        item = self._queue.popleft()
        while len(self._queue) < self._most_ahead and self._fetch(now + 1 + len(self._queue)):
            pass
        if self.state.lookaheads or self._is_open():
            for queued in self._queue:
                self._announce_due(queued)
        if starting:
            self._wait(item)
        return item

    def deliver(self, item: Item) -> None:
        """The loop gets `item`."""
        self._use = BatchUse(self, item)
        self.loops.begin_use(self, item.expected, self._use.end)
        self._source.deliver(item.batch, self.loops, functools.partial(self._find_now, item))
        if self.loops.joined and not self._has_joined:
            self._tell_joined(item)

    def returned(self, item: Item, following: object) -> None:
        """The loop is done with `item`, and comes to the loader `following`."""
        calls = self.state.calls if self.loops.joined else 0
        again = self._source.returned(item.expected, calls)
        announces = self._lookahead.batches > 0 or bool(self.state.lookaheads)
        self.loops.used(calls, following, announces and item.expected is not None)
        if again:
            self._find_again()

    def end(self) -> None:
        """The loop is over: let the clock pass whatever was announced and will not happen."""
        self._source.abandon()
        if self._use is not None and not self._use.over:
            self._use.over = True
            self.loops.abandon_use()
        while not self.state.closed and self._worker.current_clock < self._announced_until:
            self._worker.advance_clock()
        self.loops.leave(self)

    @property
    def _most_ahead(self) -> int:
        """Batches to fetch ahead: as many as any row is announced."""
        own = self.state.lookaheads
        if not own:
            return self._lookahead.batches
        others = len(own) < len(self.state.tables) or any(one.leaves_some for one in own.values())
        return max(*(one.most for one in own.values()), self._lookahead.batches if others else 0)

    def _join(self) -> None:
        """The model turns out to be called by this loop; its clock may have been moved by others."""
        now = int(self._worker.current_clock)
        if self._use is not None:
            self._use.item.clock = now
            self._realign(now + 1)
            self._tell_joined(self._use.item)

    def _tell_joined(self, item: Item) -> None:
        self._has_joined = True
        with torch._C.DisableTorchFunction():  # no part of what the loop does with its batch
            self._joined(item.batch)

    def _find_now(self, item: Item) -> None:
        """How rows are found has changed while `item` is in use."""
        self._find(item)
        self._find_again()
        self._wait(item)
        self.state.expect(item.expected)

    def _find_again(self) -> None:
        """Find the rows of all batches in the queue again, in order, and announce them."""
        for item in self._queue:
            self._find(item)

    def _realign(self, now: int) -> None:
        """The first batch of the queue will be used at this clock."""
        for i, item in enumerate(self._queue):
            item.clock = now + i
            self._announce(item)

    def _fetch(self, clock: int) -> bool:
        """Fetch the batch that will be used at `clock`; False if there is none."""
        try:
            batch = next(self._batches)
        except StopIteration:
            return False
        item = Item(batch, clock)
        self._queue.append(item)
        self._find(item)
        return True

    def _wait(self, item: Item) -> None:
        """Nobody could announce this batch earlier; the rows of the later ones come while it is in use."""
        if item.announced is not None:
            self._worker.wait_intent(item.announced)

    def _find(self, item: Item) -> None:
        item.expected = self._source.expected(item.batch)
        self._announce(item)

    def _announce(self, item: Item) -> None:
        expected = item.expected
        if expected is None:
            return
        item.announced = None
        tables = [table for table in expected.rows if table not in expected.whole]
        tables += sorted(expected.whole)
        item.later = [(table, ahead) for table in tables for ahead in self.state.aheads(table)]
        self._announce_due(item)

    def _is_open(self) -> bool:
        """Whether it is, or just now was, not decided of which tables rows are announced."""
        was, trial = self._was_open, self.state.trial
        self._was_open = trial is not None and trial.is_open
        return was or self._was_open

    def _is_due(self, table: str, ahead: int | None, clock: int) -> bool:
        if ahead is None:
            if self._lookahead.batches == 0:
                return False
            if self.state.lookaheads:  # others may be announced earlier, for which the batch was fetched
                ahead = self._lookahead.batches
        return self.state.is_due(table, clock, ahead)

    def _announce_due(self, item: Item) -> None:
        """Announce those rows whose lookahead the use of `item` is within."""
        if not item.later or item.expected is None:
            return
        expected = item.expected
        if self.state.lookaheads or self.state.trial is not None:
            due = [one for one in item.later if self._is_due(*one, item.clock)]
            item.later = [one for one in item.later if one not in due]
        else:
            due, item.later = item.later if self._lookahead.batches > 0 else [], []
        keys = [self._keys(expected, *one) for one in due]
        if not keys:
            return
        announced = keys[0] if len(keys) == 1 else torch.cat(keys)
        self._worker.intent(announced, item.clock)
        before = item.announced
        item.announced = announced if before is None else torch.cat([before, announced])
        self._announced_until = max(self._announced_until, item.clock + 1)

    def _keys(self, expected: Expected, table: str, ahead: int | None) -> Tensor:
        """Those of a table's rows that are announced so far ahead."""
        whole = table in expected.whole
        keys = self.state.tables[table].all_keys if whole else expected.rows[table].keys
        return self.state.keys_ahead(table, keys, ahead)


class BatchUse:
    """The use of one batch: until the loop comes for another one, of this loader or of another."""

    def __init__(self, ahead: Ahead, item: Item) -> None:
        self._ahead = ahead
        self.item = item
        self.over = False

    def end(self, following: object) -> None:
        """The loop comes to the loader `following`."""
        if not self.over:
            self.over = True
            self._ahead.returned(self.item, following)
