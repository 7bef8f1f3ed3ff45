"""How the training loop turns a batch into calls of the model, learned while it does so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from autoada.access.binding import Binding, Prepare, Recording
from autoada.access.program import NotRecorded
from autoada.model import AdaModel

RECORDED_BATCHES = 3
"""Batches whose way to the model is recorded; two of them have to agree."""

Way = tuple[Prepare, ...]
"""The model's calls for one batch, in order: each gives the arguments."""


def call_all(way: Way, model: nn.Module, batch: Any) -> None:
    """Call `model` as the loop does for `batch`."""
    for prepare in way:
        args, kwargs = prepare(batch)
        model(*args, **kwargs)


class LoopRecorder:
    """Listens to the model's calls in the first batches.

    The first call of the first batch gives a way that is used at once; a second batch has to confirm it. If a
    batch turns out to have several calls, all calls of the batches that follow are recorded.

    Parameters
    ----------
    model : AdaModel
        Whose calls are followed.
    changed : callable
        Called when a call of the model has made `way` another one, before the forward begins.

    Attributes
    ----------
    way : tuple of Binding, or None
        The calls that are known.
    settled : bool
        Whether no further batch is recorded.
    numbers_vary : bool
        Whether arguments hold numbers that differ from batch to batch; those of one batch stand for all.
    obstacle : str or None
        Why calls are not known.
    """

    def __init__(self, model: AdaModel, changed: Callable[[], None]) -> None:
        self._model = model
        self._changed = changed
        self.way: tuple[Binding, ...] | None = None
        self.obstacle: str | None = None
        self.settled = False
        self.numbers_vary = False
        self._all_calls = False
        self._seen: list[tuple[Binding, ...]] = []
        self._recording: Recording | None = None
        self._calls: list[Binding] = []

    def hand_out(self, batch: Any) -> None:
        """The loop gets `batch`."""
        if self.settled:
            return
        self._calls = []
        self._recording = Recording(batch)
        self._model.listen(self)
        self._recording.start()

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called, its forward has not begun."""
        recording = self._recording
        assert recording is not None
        recording.stop()
        try:
            self._calls.append(recording.arguments(args, kwargs))
        except NotRecorded as reason:
            self.obstacle = str(reason)
            self._end_recording()
        if not self._all_calls:
            self._end_recording()
            if self._learn():
                self._changed()

    def left(self, output: Any) -> None:
        """The model's forward has given `output`."""
        if self._recording is not None:
            self._recording.give_up(output)
            self._recording.start()

    def returned(self, calls: int) -> bool:
        """The loop is done with the batch, for which it called the model so many times; has `way` changed?"""
        self._end_recording()
        if self._all_calls:
            return not self.settled and self._learn()
        if calls > 1 and self.way is not None:
            self._all_calls, self.settled = True, False
            self._seen.clear()
        return False

    def give_up(self, obstacle: str) -> None:
        """Know no way any more."""
        self.way, self.settled, self.obstacle = None, True, obstacle

    def abandon(self) -> None:
        """The loop has ended, maybe in the middle of a batch."""
        self._end_recording()

    def _learn(self) -> bool:
        """Take in the calls of one batch; whether `way` has changed."""
        calls = tuple(self._calls)
        before = self.way
        agreeing = [seen for seen in self._seen if _key(seen) == _key(calls)]
        self._seen.append(calls)
        if agreeing and calls:
            self.way, self.settled = agreeing[0], True
            self.numbers_vary = _numbers(agreeing[0]) != _numbers(calls)
        elif calls and (len(self._seen) == 1 or self._all_calls) and all(c.follows_batch for c in calls):
            self.way = calls
        elif not self._all_calls:
            self.way = None
        if len(self._seen) == RECORDED_BATCHES and not self.settled:
            self.settled = True
            self.obstacle = self.obstacle or "every batch becomes the model's arguments in another way"
            self.way = self.way[:1] if self._all_calls and self.way is not None else None
        return bool(_key(self.way) != _key(before))

    def _end_recording(self) -> None:
        if self._recording is not None:
            self._recording.stop()
            self._recording = None
            self._model.listen(None)


def _numbers(way: Sequence[Binding]) -> list[tuple[float, ...]]:
    return [binding.numbers for binding in way]


def _key(way: Sequence[Binding] | None) -> Any:
    return None if way is None else [binding.key for binding in way]
