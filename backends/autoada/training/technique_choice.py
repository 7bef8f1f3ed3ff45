"""Whether rows of a table move to who announces them: tried in the first steps, then what takes less time.

A policy's ``technique = "auto"``. What it can see and what it cannot is told in docs/concepts/policies.md.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, Protocol

import adaps
from autoada.training.ab_schedule import GROUPS, LEAST, Schedule, typical

PATIENCE = 2
"""Nobody waits any more for what others have found after so many times the pairs of a trial."""

_NONE = "none"
_log = logging.getLogger("autoada")


class KeyValueStore(Protocol):
    """Where workers leave short texts for each other, as `adaps.Node` has it."""

    def post(self, name: str, text: str) -> None:
        """Leave a text."""
        ...

    def posted(self, name: str) -> str | None:
        """What was left, if anything was yet."""
        ...


@dataclass(frozen=True)
class TechniqueChoice:
    """What became of a table whose technique the policy leaves open.

    Attributes
    ----------
    table : str
        The parameter's qualified name.
    technique : "adaptive" or "static"
        Rows move, and are copied, or stay where they are. ``adaptive`` as long as it is not decided.
    steps : int or None
        Of this worker until it knew; None if it is not decided.
    pairs : int
        Of stretches that were compared.
    ratio : float or None
        What a step took while its rows moved, divided by what it took while they stayed; None if it could not
        be measured.
    alone : bool
        Whether this worker did not come to know what all found, and decided by its own steps.
    """

    table: str
    technique: Literal["adaptive", "static"]
    steps: int | None
    pairs: int
    ratio: float | None
    alone: bool


@dataclass(frozen=True)
class _Decision:
    effects: Sequence[float | None]
    pairs: int
    alone: bool = False

    def moves(self, group: int) -> bool:
        """Rows move unless that took longer: where they are wanted, they stay for later steps, too."""
        effect = self.effects[group]
        return effect is None or effect <= 0

    def text(self) -> str:
        return json.dumps({"effects": self.effects, "pairs": self.pairs})

    @classmethod
    def of(cls, text: str) -> _Decision:
        said = json.loads(text)
        return cls(said["effects"], said["pairs"])


@dataclass
class _Found:
    """What all workers have found."""

    pairs: list[dict[int, float | None]] = field(default_factory=list)

    def complete(self, workers: int) -> int:
        """How many first pairs all have told of."""
        return next(
            (number for number, pair in enumerate(self.pairs) if len(pair) < workers), len(self.pairs)
        )

    def pooled(self, pairs: int) -> list[float | None]:
        """The middle one of what workers found, for each of the first pairs."""
        found = [[value for value in pair.values() if value is not None] for pair in self.pairs[:pairs]]
        return [median(values) if values else None for values in found]


class TechniqueTrial:
    """Tries whether rows of tables are to be announced, and decides for all workers alike.

    Every worker measures its own steps and posts what each pair of stretches shows; the first one of all
    decides, by what all have posted, and posts that. Nobody waits for anybody: until a worker knows, it goes
    on trying. Whoever hears of nothing for `PATIENCE` times the pairs of a trial decides by its own
    steps.

    Parameters
    ----------
    tables : mapping of str to int
        Qualified names, with the floats of a row: if there are more than `GROUPS`, those with rows of similar
        length are tried together.
    store : KeyValueStore
        Of all workers.
    worker_index, num_workers : int
        This worker's number among all, and how many there are.
    clock : int
        The worker's present clock.
    name : str
        By which the choices of several models are told apart.
    now : callable
        Gives seconds.
    """

    def __init__(
        self,
        tables: Mapping[str, int],
        store: KeyValueStore,
        worker_index: int,
        num_workers: int,
        clock: int = 0,
        name: str = "",
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._groups = grouped(tables)
        self._schedule = Schedule(1 + max(self._groups.values()))
        self._store = store
        self._worker_index = worker_index
        self._num_workers = num_workers
        self._name = name
        self._now = now
        self._origin = clock
        self._done = 0
        self._began: float | None = None
        self._seconds: dict[int, list[float]] = defaultdict(list)
        self._own: list[float | None] = []
        self._found = _Found()
        self._decision: _Decision | None = None
        self._decided_after: int | None = None

    def __contains__(self, table: object) -> bool:
        return table in self._groups

    @property
    def is_open(self) -> bool:
        """Whether it is not decided."""
        return self._decision is None

    def moves(self, table: str, clock: int) -> bool:
        """Whether rows of a table are to be announced for their use at a clock, as far as is known now."""
        group = self._groups.get(table)
        if group is None:
            return True
        if self._decision is not None:
            return self._decision.moves(group)
        return self._schedule.moves(group, clock - self._origin)

    def left(self) -> set[str]:
        """Tables of which it is decided that their rows stay."""
        if self._decision is None:
            return set()
        return {table for table, group in self._groups.items() if not self._decision.moves(group)}

    def begin(self, clock: int) -> None:
        """A loop begins at this clock: no time before it is that of a step, and stretches go on."""
        self._began = None
        self._origin = clock - self._done

    def ended(self, clock: int, known: bool = True) -> None:
        """The step at `clock` is over; `known` says whether its rows could have been announced."""
        if self._decision is not None:
            return
        now, position = self._now(), clock - self._origin
        if self._began is not None and known and self._schedule.counts(position):
            self._seconds[self._schedule.stretch_of(position)].append(now - self._began)
        self._began = now
        self._done = max(self._done, position + 1)
        while self._done >= self._schedule.end_of(len(self._own)):
            self._end_pair()
        if self._own:
            self._look()

    def close(self) -> None:
        """This worker makes no more steps: if it is the one that decides, it does so now."""
        if self._decision is None and self._worker_index == 0:
            self._decide(last=True)

    def chosen(self) -> list[TechniqueChoice]:
        """What became of each table."""
        found = []
        decision = self._decision
        for table, group in self._groups.items():
            effect = None if decision is None else decision.effects[group]
            found.append(
                TechniqueChoice(
                    table=table,
                    technique="adaptive" if decision is None or decision.moves(group) else "static",
                    steps=self._decided_after,
                    pairs=0 if decision is None else decision.pairs,
                    ratio=None if effect is None else math.exp(effect),
                    alone=decision is not None and decision.alone,
                )
            )
        return found

    def _end_pair(self) -> None:
        pair = len(self._own)
        first, second = (self._seconds.pop(2 * pair + half, []) for half in (0, 1))
        found = None
        if min(len(first), len(second)) >= LEAST:
            found = math.log(typical(second) / typical(first))
        self._own.append(found)
        if pair < self._schedule.most:
            self._post(f"pair {pair} of {self._worker_index}", _NONE if found is None else repr(found))

    def _look(self) -> None:
        """Whether it can be decided now, or has been."""
        if self._worker_index == 0:
            self._decide(last=len(self._own) >= PATIENCE * self._schedule.most)
        elif (text := self._posted("decided")) is not None:
            self._follow(_Decision.of(text))
        elif len(self._own) >= PATIENCE * self._schedule.most:
            pooled = self._own[: self._schedule.most]
            effects = self._schedule.judge(pooled, final=True)
            assert effects is not None
            self._follow(_Decision(effects, len(pooled), alone=True))

    def _decide(self, last: bool) -> None:
        """By what all have found, or `last`ly by what is there."""
        self._gather()
        known = len(self._found.pairs) if last else self._found.complete(self._num_workers)
        effects = self._schedule.judge(self._found.pooled(known), final=last or known >= self._schedule.most)
        if effects is not None:
            decision = _Decision(effects, known)
            self._post("decided", decision.text())
            self._follow(decision)

    def _gather(self) -> None:
        pairs = self._found.pairs
        for number in range(len(pairs), min(len(self._own), self._schedule.most)):
            pairs.append({self._worker_index: self._own[number]})
        for number in range(self._found.complete(self._num_workers), len(pairs)):
            missing = [share for share in range(self._num_workers) if share not in pairs[number]]
            for share in missing:
                if (text := self._posted(f"pair {number} of {share}")) is not None:
                    pairs[number][share] = None if text == _NONE else float(text)
            if len(pairs[number]) < self._num_workers:
                return  # of the later ones nobody is asked yet

    def _follow(self, decision: _Decision) -> None:
        self._decision, self._decided_after = decision, self._done
        self._seconds.clear()
        for one in self.chosen():
            _log.info(
                "rows of %r %s, after %d steps: a step took %s while they moved",
                one.table,
                "move" if one.technique == "adaptive" else "stay where they are",
                self._done,
                "nobody knows how long" if one.ratio is None else f"{one.ratio:.2f} times as long",
            )

    def _post(self, name: str, text: str) -> None:
        try:
            self._store.post(f"{self._name}: {name}", text)
        except RuntimeError as error:  # the store has ended, with a node that has nothing left to train on
            _log.debug("what was measured cannot be told: %s", error)

    def _posted(self, name: str) -> str | None:
        try:
            return self._store.posted(f"{self._name}: {name}")
        except RuntimeError as error:
            _log.debug("what others have measured cannot be known: %s", error)
            return None


def technique_trial(
    node: adaps.Node, worker: int, worker_index: int, num_workers: int, clock: int, tables: Mapping[str, int]
) -> TechniqueTrial | None:
    """The choice of a worker's next model; None if there is nothing to choose.

    All workers make their models in the same order.
    """
    if not tables or node.world_size == 1:  # on one node every row is where it is read
        return None
    with _lock:
        made = _made.setdefault(node, defaultdict(int))
        made[worker] += 1
        name = f"choice {made[worker]}"
    return TechniqueTrial(tables, node, worker_index, num_workers, clock, name)


def grouped(tables: Mapping[str, int]) -> dict[str, int]:
    """Each table's group, from 0 on: its own one, or that of rows of similar length."""
    if len(tables) <= GROUPS:
        return {table: number for number, table in enumerate(tables)}
    lengths = sorted(set(tables.values()))
    parts = min(GROUPS, len(lengths))
    return {table: lengths.index(length) * parts // len(lengths) for table, length in tables.items()}


_made: weakref.WeakKeyDictionary[adaps.Node, dict[int, int]] = weakref.WeakKeyDictionary()
"""Choices of each worker of each node."""
_lock = threading.Lock()
