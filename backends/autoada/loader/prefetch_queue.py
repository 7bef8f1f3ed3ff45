"""The prefetch queue of a model: fetches batches ahead of their use and signals intent for their rows."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from autoada.loader.data_sharding import warn_of_equal_data
from autoada.loader.held_batch import HeldBatch
from autoada.loader.intent_source import IntentSource
from autoada.loader.lookahead import Lookahead
from autoada.model.wrapper import AdaModel, calls_of, training_state_of
from autoada.prediction.argument_recording import ArgumentRecorder
from autoada.prediction.row_set import Expected

Models = weakref.WeakKeyDictionary[AdaModel, None]
"""Existing models, in order."""


@dataclass
class QueuedBatch:
    """A batch that was fetched."""

    held: HeldBatch
    clock: int
    expected: Expected | None = None
    signalled: Tensor | None = None
    """Keys with signalled intent."""
    pending: Sequence[tuple[int | None, Tensor]] = ()
    """Number of batches ahead (None for the number of the loader), and keys whose intent is signalled when
    their use is near enough."""


class PrefetchQueue:
    """Manages the batches of a loop for one model, from the loader to the end of their use.

    ``next_batch`` finishes the previous batch, fetches, predicts and signals intent. ``mark_in_use`` hands
    the batch to the loop. Until the loop comes for another batch, the queue then observes the model's calls.
    The queue adds its model to `called`, the models that the loop has called in order. Without a `source`, no
    rows are announced.
    """

    def __init__(
        self,
        model: AdaModel,
        source: IntentSource | None,
        batches: Iterator[HeldBatch],
        may_run_ahead: Callable[[], bool],
        lookahead: Lookahead,
        called: Models,
        sharded: bool,
    ) -> None:
        self._model = weakref.ref(model)
        self._state = training_state_of(model)
        self._calls = calls_of(model)
        self._worker = self._state.worker
        self._source = source
        self._batches = batches
        self._may_run_ahead = may_run_ahead
        self._lookahead = lookahead
        self._called = called
        self._sharded = sharded
        self._queue: deque[QueuedBatch] = deque()
        self._handed_out: QueuedBatch | None = None
        self._batch: Any = None
        self._noted = False
        self._signalled_until = 0
        self._loops = self._state.enter(self)

    def next_batch(self) -> QueuedBatch | None:
        """Return the next batch after filling the queue with the batches after it; None at the end.

        The last entry of the queue may be an error of the loader.
        """
        self.finish_previous()
        queue, state, now = self._queue, self._state, int(self._worker.current_clock)
        starts = not queue
        if not starts and queue[0].clock != now:  # Another loop of the same worker moved the clock.
            self._realign(now)
        most = self._most_ahead if state.lookaheads else self._lookahead.batches
        while not queue or (queue[-1].held.end is None and len(queue) <= most and self._may_run_ahead()):
            try:
                fetched = QueuedBatch(next(self._batches), queue[-1].clock + 1 if queue else now)
            except StopIteration:
                break
            queue.append(fetched)
            if self._source is not None:
                self._predict(fetched)
        if not queue:
            return None
        item = self._handed_out = queue.popleft()
        if state.lookaheads:  # Rows of other batches may be due by now.
            for queued in queue:
                self._signal_intent(queued)
        if starts and item.signalled is not None:  # The rows could not be requested earlier.
            self._worker.wait_intent(item.signalled)
        return item

    def finish_previous(self) -> None:
        """Finish the batch in use, of this loop or of another one of the thread."""
        if (previous := self._loops.in_use) is not None:
            previous.mark_done(following=self)

    def mark_in_use(self, batch: Any) -> None:
        """Assign the model's calls to `batch`, the last one, until the loop requests another."""
        loops, state = self._loops, self._state
        if loops.in_use is not None:  # Fetching a batch may have run another loop.
            self.finish_previous()
        loops.in_use = self
        loops.used_together.add(self)
        self._calls.abandon_call()
        self._batch = batch
        if state.owner is loops:
            expected = None if self._handed_out is None else self._handed_out.expected
            if expected is not None or state.calls > 0 or state.reads or state.reads.holders:
                state.expect(expected)
            if not self._noted:
                self._note_called(batch)
        if self._source is not None:
            self._source.mark_in_use(batch, alone=len(loops.used_together) == 1)

    def mark_done(self, following: object) -> None:
        """End the use of the batch, as the loop requests another batch from the queue `following`.

        Batches of several loaders that are handed out before the model is called are used at one clock.
        """
        self._loops.in_use = None
        item, state = self._handed_out, self._state
        expected = None if item is None else item.expected
        attached = state.owner is self._loops
        calls = state.calls if attached else 0
        predict_again = self._source is not None and self._source.mark_done(expected, calls)
        if attached:
            self._calls.abandon_call()
            state.expect(None)
        if calls > 0 or following in self._loops.used_together:
            self._loops.used_together.clear()
            if attached:
                state.advance_clock()
        if predict_again:
            for queued in self._queue:
                self._predict(queued)

    def close(self) -> None:
        """End the loop: the clock passes all cancelled uses with signalled intent."""
        if self._source is not None:
            self._source.abandon()
        if self._loops.in_use is self:
            self._loops.in_use = None
            self._loops.used_together.clear()
            if self.attached:
                self._calls.abandon_call()
                self._state.expect(None)
        while not self._state.closed and self._worker.current_clock < self._signalled_until:
            self._worker.advance_clock()
        self._state.leave(self._loops, self)

    # The model's calls

    @property
    def announces_nothing(self) -> bool:
        """Whether the loop signals no intent, so that no batch is fetched ahead."""
        return self._source is None and not self._state.lookaheads

    @property
    def attached(self) -> bool:
        """Whether the loops of this thread call the model."""
        return self._state.owner is self._loops

    def attach(self) -> None:
        """Attach the model to the loops of this thread.

        Raises
        ------
        RuntimeError
            If loops of another thread call it.
        """
        if not self.attached:
            self._calls.abandon_call()
            self._state.attach(self._loops)

    def model_attached(self) -> None:
        """Continue at the model's clock, which other loops may have moved."""
        if self._handed_out is not None:
            now = int(self._worker.current_clock)
            self._handed_out.clock = now
            self._realign(now + 1)
        if self._batch is not None and not self._noted:
            self._note_called(self._batch)

    @property
    def recording(self) -> ArgumentRecorder | None:
        """Recording of the loop between the model's calls, if there is one."""
        return None if self._source is None else self._source.recording

    def call_begins(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Observe a call of the model, or of its method or module `target`, before it runs."""
        if self._source is not None and self._source.call_begins(target, args, kwargs):
            self._predict_all_again()

    def call_ends(self, output: Any, counts: bool) -> None:
        """Observe the end of a call; a helper that reads no rows does not count."""
        if self._source is None:
            return
        if self._source.call_ends(counts):
            self._predict_all_again()
        if (recording := self._source.recording) is not None:
            recording.give_up(output)
            recording.start()

    # Steps of the flow

    def _predict(self, item: QueuedBatch) -> None:
        """Find the rows that `item` will read, and signal intent for the rows that are due."""
        assert self._source is not None
        if item.held.end is None:
            item.expected = self._source.expected(item.held.batch)
            self._plan_intent(item)

    def _plan_intent(self, item: QueuedBatch) -> None:
        """Make the intent for all rows of `item` pending, and signal it for the rows that are due."""
        expected = item.expected
        if expected is None:
            return
        item.signalled = None
        keys = {table: rows.keys for table, rows in expected.rows.items()}
        keys |= {table: self._state.tables[table].rows.all_keys for table in sorted(expected.whole)}
        item.pending = [
            part for table, own in keys.items() for part in self._state.keys_by_lookahead(table, own)
        ]
        self._signal_intent(item)

    def _signal_intent(self, item: QueuedBatch) -> None:
        """Signal intent for the pending rows of `item` that are due by their lookahead."""
        due = [self._is_due(ahead, item.clock) for ahead, _ in item.pending]
        if not any(due):
            return
        parts = [keys for _, keys in compress(item.pending, due)]
        item.pending = [each for each, is_due in zip(item.pending, due, strict=True) if not is_due]
        keys = parts[0] if len(parts) == 1 else torch.cat(parts)
        self._worker.intent(keys, item.clock)
        item.signalled = keys if item.signalled is None else torch.cat([item.signalled, keys])
        self._signalled_until = max(self._signalled_until, item.clock + 1)

    # Helpers

    @property
    def _most_ahead(self) -> int:
        """Number of batches to fetch ahead if rows have their own lookaheads: the largest of any row."""
        own = self._state.lookaheads
        others = len(own) < len(self._state.tables) or any(one.leaves_some for one in own.values())
        return max(*(one.most for one in own.values()), self._lookahead.batches if others else 0)

    def _is_due(self, ahead: int | None, clock: int) -> bool:
        if ahead is None:
            ahead = self._lookahead.batches
            if ahead == 0:
                return False
            if not self._state.lookaheads:  # No batch is fetched earlier than this lookahead.
                return True
        return clock - int(self._worker.current_clock) <= ahead

    def _realign(self, now: int) -> None:
        """Shift the queue so that it begins at clock `now`."""
        for i, item in enumerate(self._queue):
            item.clock = now + i
            self._plan_intent(item)

    def _predict_all_again(self) -> None:
        """Predict the batch in use and all batches of the queue again, with new knowledge."""
        item = self._handed_out
        assert item is not None
        for each in (item, *self._queue):
            self._predict(each)
        if item.signalled is not None:
            self._worker.wait_intent(item.signalled)
        self._calls.abandon_call()
        self._state.expect(item.expected)

    def _note_called(self, batch: Any) -> None:
        """Note that the loop calls the model."""
        self._noted = True
        if (model := self._model()) is not None:
            self._called[model] = None
        if self._state.begins_data() and not self._sharded:
            with torch._C.DisableTorchFunction():  # It is not part of the loop's own work on its batch.
                warn_of_equal_data(self._state.access, batch)
