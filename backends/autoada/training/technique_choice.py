"""Choice between moving and static rows of a table: tried in the first steps, then the faster technique.

A policy's ``technique = "auto"``; docs/concepts/policies.md describes the trial and its limits.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import adaps
from autoada.parameters.server_access import ServerAccess
from autoada.sync.process_group import number_of
from autoada.training.ab_schedule import GROUPS, LEAST, Schedule, typical

PATIENCE = 2
"""Multiple of a trial's pairs after which a worker decides alone."""

_log = logging.getLogger("autoada")


@dataclass(frozen=True)
class TechniqueChoice:
    """The chosen technique of a table with ``technique = "auto"``.

    Attributes
    ----------
    table : str
        Qualified name of the parameter.
    technique : "adaptive" or "static"
        Technique: rows move and are copied, or they stay at their home node. It is ``adaptive`` until the
        decision.
    steps : int or None
        Number of this worker's steps until it received the decision; None if there is no decision.
    pairs : int
        Number of compared pairs of phases.
    ratio : float or None
        Seconds of a step while the table's rows moved ÷ seconds while they stayed; None if it could not be
        measured.
    alone : bool
        Whether this worker did not receive the common decision, and decided by its own steps.
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
        """Whether the group's rows move. They move unless this took longer."""
        effect = self.effects[group]
        return effect is None or effect <= 0


class TechniqueTrial:
    """Tries both techniques for tables, and makes one decision for all workers.

    Every worker measures its own steps and posts the quotient of each pair of phases. Worker 0 decides by all
    quotients, and posts the decision. No worker waits: it continues the trial until it receives the decision.
    A worker that receives none for `PATIENCE` times the pairs of a trial decides by its own steps. Tables
    with rows of similar length are tried together if there are more than `GROUPS` tables.
    """

    def __init__(
        self,
        tables: Mapping[str, int],
        node: adaps.Node,
        worker_index: int,
        num_workers: int,
        clock: int = 0,
        name: str = "",
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._groups = grouped(tables)
        self._schedule = Schedule(1 + max(self._groups.values()))
        self._node = node
        self._worker_index = worker_index
        self._num_workers = num_workers
        self._name = name
        self._now = now
        self._origin = clock
        self._done = 0
        self._began: float | None = None
        self._seconds: dict[int, list[float]] = defaultdict(list)
        self._own: list[float | None] = []
        self._gathered: list[dict[int, float | None]] = []  # for each pair: the measurement by worker
        self._decision = _Decision([None] * self._schedule.groups, pairs=0)
        self._decided_after: int | None = None

    def __contains__(self, table: object) -> bool:
        return table in self._groups

    @property
    def is_open(self) -> bool:
        """Whether it is not decided."""
        return self._decided_after is None

    def moves(self, table: str, clock: int) -> bool:
        """Whether rows of a table move for their use at a clock, by the schedule or the decision."""
        group = self._groups.get(table)
        if group is None:
            return True
        if self.is_open:
            return self._schedule.moves(group, clock - self._origin)
        return self._decision.moves(group)

    def left(self) -> set[str]:
        """Return the tables with rows that stay, by the decision."""
        return {table for table, group in self._groups.items() if not self._decision.moves(group)}

    def begin(self, clock: int) -> None:
        """Begin a loop at this clock: the schedule continues, and the time before belongs to no step."""
        self._began = None
        self._origin = clock - self._done

    def ended(self, clock: int, known: bool = True) -> None:
        """End the step at `clock`; `known` is whether intent for its rows could be signalled."""
        if not self.is_open:
            return
        now, position = self._now(), clock - self._origin
        if self._began is not None and known and self._schedule.counts(position):
            self._seconds[self._schedule.phase_of(position)].append(now - self._began)
        self._began = now
        self._done = max(self._done, position + 1)
        while self._done >= self._schedule.end_of(len(self._own)):
            self._end_pair()
        if self._own:
            self._look()

    def close(self) -> None:
        """End this worker's steps; worker 0 decides now."""
        if self.is_open and self._worker_index == 0:
            self._decide(last=True)

    def chosen(self) -> list[TechniqueChoice]:
        """Return the choice for each table."""
        decision = self._decision
        return [
            TechniqueChoice(
                table=table,
                technique="adaptive" if decision.moves(group) else "static",
                steps=self._decided_after,
                pairs=decision.pairs,
                ratio=None if (effect := decision.effects[group]) is None else math.exp(effect),
                alone=decision.alone,
            )
            for table, group in self._groups.items()
        ]

    def _end_pair(self) -> None:
        pair = len(self._own)
        first, second = (self._seconds.pop(2 * pair + half, []) for half in (0, 1))
        found = None
        if min(len(first), len(second)) >= LEAST:
            found = math.log(typical(second) / typical(first))
        self._own.append(found)
        if pair < self._schedule.most:
            self._post(f"pair {pair} of {self._worker_index}", json.dumps(found))

    def _look(self) -> None:
        """Decide, or follow the decision, if that is possible now."""
        exhausted = len(self._own) >= PATIENCE * self._schedule.most
        if self._worker_index == 0:
            self._decide(last=exhausted)
        elif (text := self._posted("decided")) is not None:
            self._follow(_Decision(**json.loads(text)))
        elif exhausted:
            own = self._own[: self._schedule.most]
            effects = self._schedule.judge(own, final=True)
            assert effects is not None
            self._follow(_Decision(effects, len(own), alone=True))

    def _decide(self, last: bool) -> None:
        """Decide by the pairs that all workers have posted; at `last` by all posted pairs."""
        complete = self._gather()
        known = len(self._gathered) if last else complete
        posted = [[value for value in pair.values() if value is not None] for pair in self._gathered[:known]]
        pooled = [median(values) if values else None for values in posted]
        effects = self._schedule.judge(pooled, final=last or known >= self._schedule.most)
        if effects is not None:
            self._post("decided", json.dumps({"effects": effects, "pairs": known}))
            self._follow(_Decision(effects, known))

    def _gather(self) -> int:
        """Gather what workers have posted; return the number of first pairs that all have posted."""
        pairs = self._gathered
        pairs += [{self._worker_index: own} for own in self._own[len(pairs) : self._schedule.most]]
        for number, pair in enumerate(pairs):
            for worker in range(self._num_workers):
                if worker not in pair and (text := self._posted(f"pair {number} of {worker}")) is not None:
                    pair[worker] = json.loads(text)
            if len(pair) < self._num_workers:
                return number  # Later pairs are not requested yet.
        return len(pairs)

    def _follow(self, decision: _Decision) -> None:
        self._decision, self._decided_after = decision, self._done
        self._seconds.clear()
        for one in self.chosen():
            _log.info(
                "rows of %r %s, after %d steps: a step took %s while they moved",
                one.table,
                "move" if one.technique == "adaptive" else "stay where they are",
                self._done,
                "an unknown time" if one.ratio is None else f"{one.ratio:.2f} times as long",
            )

    def _post(self, name: str, text: str) -> None:
        try:
            self._node.post(f"{self._name}: {name}", text)
        except RuntimeError as error:  # The store has ended with its node, which had no data left.
            _log.debug("a measurement cannot be posted: %s", error)

    def _posted(self, name: str) -> str | None:
        try:
            return self._node.posted(f"{self._name}: {name}")
        except RuntimeError as error:
            _log.debug("measurements of other workers cannot be read: %s", error)
            return None


def technique_trial(access: ServerAccess, tables: Mapping[str, int]) -> TechniqueTrial | None:
    """Make the trial of a worker's next model; None if there is nothing to choose.

    All workers make their models in the same order.
    """
    node, clock = access.node, int(access.worker.current_clock)
    if not tables or node.world_size == 1:  # On a single node every row is local.
        return None
    name = f"choice {number_of(node, 'choice', access.local_index)}"
    return TechniqueTrial(tables, node, access.worker_index, access.num_workers, clock, name)


def grouped(tables: Mapping[str, int]) -> dict[str, int]:
    """Return each table's group, from 0 on: a separate group, or the group of rows of similar length."""
    if len(tables) <= GROUPS:
        return {table: number for number, table in enumerate(tables)}
    lengths = sorted(set(tables.values()))
    parts = min(GROUPS, len(lengths))
    return {table: lengths.index(length) * parts // len(lengths) for table, length in tables.items()}
