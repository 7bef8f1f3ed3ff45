"""Sees what workers of the parameter server announce and read, clock by clock, at the calls themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import adaps

LASTING = 10_000
"""An announcement for more clocks than this counts as one for the whole training."""


Numbers = npt.NDArray[np.int64]
Calls = list[tuple[Numbers, int]]
"""The keys and the number of each call."""


class TableClocks(NamedTuple):
    """The use of one table.

    Attributes
    ----------
    rows : list of set of int
        The rows that were read at each clock.
    exact : list of bool
        Whether exactly these rows had been announced for the clock before its first read.
    kept : bool
        Whether all rows were announced for the whole training.
    """

    rows: list[set[int]]
    exact: list[bool]
    kept: bool

    @property
    def exact_from(self) -> int:
        """The first clock from which on all clocks are exact."""
        wrong = [clock for clock, exact in enumerate(self.exact) if not exact]
        return wrong[-1] + 1 if wrong else 0


class Observer:
    """Announcements and reads of this process's workers while `watching`."""

    def __init__(self) -> None:
        self._announced: dict[int, Calls] = defaultdict(list)  # by clock
        self._read: dict[int, Calls] = defaultdict(list)
        self._kept: set[int] = set()
        self._calls = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See all calls in the meantime."""
        intent, pull, pull_rows = adaps.Worker.intent, adaps.Worker.pull, adaps.Worker.pull_rows

        def seen_intent(worker: Any, keys: Any, start: int, end: int | None = None, **options: Any) -> Any:
            self._calls += 1
            end = start + 1 if end is None else end
            if end - start > LASTING:
                self._kept.update(keys.tolist())
            else:
                for clock in range(start, end):
                    self._announced[clock].append((keys.numpy().copy(), self._calls))
            return intent(worker, keys, start, end, **options)

        def seen_pull(worker: Any, keys: Any, *arguments: Any, **options: Any) -> Any:
            self._calls += 1
            self._read[int(worker.current_clock)].append((keys.numpy().flatten(), self._calls))
            return pull(worker, keys, *arguments, **options)

        def seen_pull_rows(worker: Any, table: Any, ids: Any, *arguments: Any) -> Any:
            self._calls += 1
            self._read[int(worker.current_clock)].append((table.keys(ids).numpy().flatten(), self._calls))
            return pull_rows(worker, table, ids, *arguments)

        seen = {"intent": seen_intent, "pull": seen_pull, "pull_rows": seen_pull_rows}
        with patch.multiple(adaps.Worker, **cast("Any", seen)):
            yield

    def clocks(self, count: int, tables: Mapping[str, range]) -> dict[str, TableClocks]:
        """The use of tables, given by their keys, during the first `count` clocks."""
        read = [_first_calls(self._read[clock]) for clock in range(count)]
        announced = [_first_calls(self._announced[clock]) for clock in range(count)]
        return {
            name: self._clocks_of(
                keys, [_part(first, keys) for first in read], [_part(first, keys) for first in announced]
            )
            for name, keys in tables.items()
        }

    def _clocks_of(
        self, keys: range, reads: Sequence[FirstCalls], announcements: Sequence[FirstCalls]
    ) -> TableClocks:
        kept = self._kept.issuperset(keys)
        rows, exact = [], []
        for read, announced in zip(reads, announcements, strict=True):
            begins = read.calls.min() if len(read.calls) else 0
            in_time = bool((announced.calls < begins).all())
            rows.append(set((read.keys - keys.start).tolist()))
            same = (
                np.isin(announced.keys, read.keys).all()
                if kept
                else np.array_equal(announced.keys, read.keys)
            )
            exact.append(in_time and bool(same))
        return TableClocks(rows, exact, kept)


class FirstCalls(NamedTuple):
    """Distinct keys in order, and the first call with each."""

    keys: Numbers
    calls: Numbers


def _first_calls(calls: Calls) -> FirstCalls:
    if not calls:
        return FirstCalls(np.empty(0, np.int64), np.empty(0, np.int64))
    keys, first = np.unique(np.concatenate([keys for keys, _ in calls]), return_index=True)
    numbers = np.repeat([number for _, number in calls], [len(keys) for keys, _ in calls])
    return FirstCalls(keys, numbers[first])


def _part(first: FirstCalls, keys: range) -> FirstCalls:
    """The part of the calls that concerns these keys."""
    start, stop = np.searchsorted(first.keys, [keys.start, keys.stop])
    return FirstCalls(first.keys[start:stop], first.calls[start:stop])
