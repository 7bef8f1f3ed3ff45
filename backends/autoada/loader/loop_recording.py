"""Records how the training loop turns a batch into calls of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import nn

from autoada.prediction.argument_recording import ArgumentRecorder, Prepare, RecordedArguments
from autoada.prediction.compiled_program import NotRecorded
from autoada.prediction.source_location import user_location

RECORDED_BATCHES = 3
"""Number of batches whose way to the model is recorded; two of them have to agree."""
SELDOM = 16
"""Interval in batches between recordings while a loop does not call the model."""


@dataclass(frozen=True)
class Call:
    """One call for a batch."""

    target: str
    """Dotted name of the model's method or module that is called; empty for the model itself."""
    prepare: Prepare
    """Function that returns the arguments for a batch."""


@dataclass(frozen=True)
class RecordedCall(Call):
    """A recorded call."""

    prepare: RecordedArguments


Calls = tuple[Call, ...]
"""Calls of the model for one batch, in order."""


def call_all(recorded: Calls, model: nn.Module, batch: Any) -> None:
    """Call `model` for `batch` in the same way as the loop."""
    for call in recorded:
        args, kwargs = call.prepare(batch)
        (attrgetter(call.target)(model) if call.target else model)(*args, **kwargs)


class LoopRecorder:
    """Records a model's calls in the first batches.

    The first call of the first batch is used at once; a second batch has to confirm it. If a batch turns out
    to have several calls, all calls of the batches that follow are recorded. A method that reads no rows is a
    helper of the loop. Its calls are left out, and its outputs are unknown. With `prepare`, nothing is
    recorded: the first call of a batch has these arguments, and other calls are unknown.
    """

    def __init__(self, prepare: Prepare | None = None) -> None:
        self._given: Calls | None = None if prepare is None else (Call("", prepare),)
        self.recorded: tuple[RecordedCall, ...] | None = None
        self.obstacle = None if prepare is None else "prepare= gives one"
        """Reason why the calls, or those after the first ones, are unknown."""
        self.where = ""
        """``file:line`` of the last call that was recorded."""
        self.settled = prepare is not None
        """Whether no further batch is recorded."""
        self.numbers_vary = False
        """Whether arguments contain numbers that differ between batches; those of one batch are used for
        all."""
        self._all_calls = False
        self._seen: list[tuple[RecordedCall, ...]] = []
        self.recording: ArgumentRecorder | None = None
        self.takes_one_loader = True
        """Whether the batches that a step uses come from one loader."""
        self._calls: list[RecordedCall] = []
        self._present: tuple[str, RecordedCall | str, bool] | None = None
        """Target of the current call, the call or the reason why it is unknown, and whether it is taken."""
        self._before: tuple[Any, ...] = ()
        """What was known before the current call."""
        self._helpers: set[str] = set()
        self._late = False
        self._uncalled = 0

    @property
    def calls(self) -> Calls | None:
        """Calls of the model for each batch; None while they are unknown."""
        return self._given or self.recorded

    def mark_in_use(self, batch: Any, alone: bool) -> None:
        """Record the use of `batch`; `alone` is whether no other loader's batch is used with it."""
        self.takes_one_loader = alone
        if self.settled:
            return
        self._uncalled += 1
        if self._uncalled > RECORDED_BATCHES and self._uncalled % SELDOM:
            return  # This loop may not use the model.
        self._calls = []
        self.recording = ArgumentRecorder(batch)
        self.recording.start()

    def call_begins(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Record a call before it runs; return whether `recorded` changed."""
        recording = self.recording
        if recording is None:
            return False
        self._uncalled = 0
        recording.stop()
        self.where = user_location()
        self._before = (self.recorded, self.settled, self.numbers_vary, self.obstacle)
        call: RecordedCall | str
        try:
            call = RecordedCall(target, recording.arguments(args, kwargs))
        except NotRecorded as reason:
            call = str(reason)
        uses_batch = isinstance(call, RecordedCall) and call.prepare.uses_batch
        taken = not target or (uses_batch and target not in self._helpers)
        self._present = target, call, taken
        return taken and self._take(call)

    def call_ends(self, counts: bool) -> bool:
        """Take the recorded call if it counts, else leave it; return whether `recorded` changed."""
        present, self._present = self._present, None
        if present is None or self.recording is None:
            return False
        target, call, taken = present
        if counts:
            self._helpers.discard(target)
            if not taken:
                self._late = self._take(call) or self._late
            if not self._all_calls:
                self.end_recording()
            return False
        self._helpers.add(target)
        return taken and self._take_back(call)

    def mark_done(self, calls: int, target: str) -> bool:
        """End the use of a batch after some calls of the model, the first of `target`.

        Returns whether `calls` changed.
        """
        if self._given is not None:
            before = self._given
            self._given = (Call(target if calls > 0 else before[0].target, before[0].prepare),)
            return self._given != before
        self.end_recording()
        changed, self._late = self._late, False
        if self._all_calls:
            return (not self.settled and self._learn()) or changed
        if calls > 1 and self.recorded is not None:
            self._all_calls, self.settled = True, False
            self._seen.clear()
        return changed

    def give_up(self, obstacle: str) -> None:
        """Forget all calls."""
        self.recorded, self.settled, self.obstacle = None, True, obstacle

    def end_recording(self) -> None:
        """Stop recording the loop."""
        if self.recording is not None:
            self.recording.stop()
            self.recording = None

    def _take(self, call: RecordedCall | str) -> bool:
        """Take a call of the model, or the reason why it is unknown; return whether `recorded` changed."""
        if isinstance(call, str):
            self.obstacle = call
            self.end_recording()
        else:
            self._calls.append(call)
        return not self._all_calls and self._learn()

    def _take_back(self, call: RecordedCall | str) -> bool:
        """Remove a call that did not read rows of the model; return whether `recorded` changed."""
        before = self.recorded
        if isinstance(call, RecordedCall):
            self._calls.pop()
        if not self._all_calls:
            self._seen.pop()
            self.recorded, self.settled, self.numbers_vary, self.obstacle = self._before
        return bool(_key(self.recorded) != _key(before))

    def _learn(self) -> bool:
        """Learn from the calls of one batch; return whether `recorded` changed."""
        calls = tuple(self._calls)
        before = self.recorded
        agreeing = [seen for seen in self._seen if _key(seen) == _key(calls)]
        self._seen.append(calls)
        if agreeing and calls:
            self.recorded, self.settled = agreeing[0], True
            self.numbers_vary = _numbers(agreeing[0]) != _numbers(calls)
        elif (
            calls
            and (len(self._seen) == 1 or self._all_calls)
            and all(c.prepare.follows_batch for c in calls)
        ):
            self.recorded = calls
        elif not self._all_calls:
            self.recorded = None
        if len(self._seen) == RECORDED_BATCHES and not self.settled:
            self.settled = True
            merged = _merged(*self._seen[-2:]) if self.takes_one_loader else None
            if merged is not None:
                self.recorded, self.numbers_vary = merged, _numbers(merged) != _numbers(self._seen[-2])
            else:
                self.obstacle = self.obstacle or "every batch becomes the model's arguments in another way"
                self.recorded = self.recorded[:1] if self._all_calls and self.recorded is not None else None
        if self.settled:
            for call in (call for seen in self._seen for call in seen):
                call.prepare.seal()
            self._seen = [()]
        return bool(_key(self.recorded) != _key(before))


def _merged(first: Sequence[RecordedCall], second: Sequence[RecordedCall]) -> tuple[RecordedCall, ...] | None:
    """Return the calls that two batches have in common; None if there are none."""
    if not second or [call.target for call in first] != [call.target for call in second]:
        return None
    merged = [b.prepare.merged(a.prepare) for a, b in zip(first, second, strict=True)]
    calls = [
        RecordedCall(call.target, recorded) for call, recorded in zip(second, merged, strict=True) if recorded
    ]
    return tuple(calls) if len(calls) == len(second) else None


def _numbers(recorded: Sequence[RecordedCall]) -> list[tuple[float, ...]]:
    return [call.prepare.numbers for call in recorded]


def _key(recorded: Sequence[RecordedCall] | None) -> Any:
    """Return a key that is equal for calls that do the same, regardless of numbers."""
    return None if recorded is None else [(call.target, call.prepare.key) for call in recorded]
