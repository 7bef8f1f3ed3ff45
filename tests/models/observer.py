"""Sees what workers of the parameter server announce and read, clock by clock, at the calls themselves."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import adaps

LASTING = 10_000
"""An announcement for more clocks than this is one for the whole training."""


class TableClocks(NamedTuple):
    """How one table was used.

    Attributes
    ----------
    rows : list of set of int
        What was read at each clock.
    exact : list of bool
        Whether that, and nothing else, had been announced for the clock before the first of it was read.
    kept : bool
        Whether all rows were announced for the whole training.
    """

    rows: list[set[int]]
    exact: list[bool]
    kept: bool

    @property
    def exact_from(self) -> int:
        """The first clock from which on all are exact."""
        wrong = [clock for clock, exact in enumerate(self.exact) if not exact]
        return wrong[-1] + 1 if wrong else 0


class Observer:
    """Announcements and reads of this process's workers while `watching`."""

    def __init__(self) -> None:
        self._announced: dict[int, dict[int, int]] = defaultdict(dict)  # clock -> key -> when
        self._read: dict[int, dict[int, int]] = defaultdict(dict)
        self._kept: set[int] = set()
        self._calls = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See all calls in the meantime."""
        intent, pull = adaps.Worker.intent, adaps.Worker.pull

        def seen_intent(worker: Any, keys: Any, start: int, end: int | None = None, **options: Any) -> Any:
            self._calls += 1
            end = start + 1 if end is None else end
            if end - start > LASTING:
                self._kept.update(keys.tolist())
            else:
                for clock in range(start, end):
                    for key in keys.tolist():
                        self._announced[clock].setdefault(key, self._calls)
            return intent(worker, keys, start, end, **options)

        def seen_pull(worker: Any, keys: Any, *arguments: Any, **options: Any) -> Any:
            self._calls += 1
            for key in keys.tolist():
                self._read[int(worker.current_clock)].setdefault(key, self._calls)
            return pull(worker, keys, *arguments, **options)

        adaps.Worker.intent, adaps.Worker.pull = seen_intent, seen_pull  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            adaps.Worker.intent, adaps.Worker.pull = intent, pull  # type: ignore[method-assign]

    def clocks(self, count: int, tables: Mapping[str, range]) -> dict[str, TableClocks]:
        """What happened at the first `count` clocks, for tables given by their keys."""
        read = [_by_table(self._read[clock], tables) for clock in range(count)]
        announced = [_by_table(self._announced[clock], tables) for clock in range(count)]
        return {
            name: self._clocks_of(keys, [part[name] for part in read], [part[name] for part in announced])
            for name, keys in tables.items()
        }

    def _clocks_of(
        self, keys: range, reads: Sequence[Mapping[int, int]], announcements: Sequence[Mapping[int, int]]
    ) -> TableClocks:
        kept = self._kept.issuperset(keys)
        rows, exact = [], []
        for read, announced in zip(reads, announcements, strict=True):
            begins = min(read.values(), default=0)
            in_time = all(when < begins for when in announced.values())
            rows.append({key - keys.start for key in read})
            exact.append(
                in_time and (announced.keys() <= read.keys() if kept else announced.keys() == read.keys())
            )
        return TableClocks(rows, exact, kept)


def _by_table(keys: Mapping[int, int], tables: Mapping[str, range]) -> dict[str, dict[int, int]]:
    """What belongs to keys, by the table that they belong to."""
    ordered = sorted(tables.items(), key=lambda item: item[1].start)
    starts = [span.start for _, span in ordered]
    parts: dict[str, dict[int, int]] = {name: {} for name in tables}
    for key, value in keys.items():
        place = bisect.bisect(starts, key) - 1
        if place >= 0 and key in ordered[place][1]:
            parts[ordered[place][0]][key] = value
    return parts
