"""Which loads each way to manage a table adds, and so the problem that a policy is the solution of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from adabench.backends.interface import Served
from adabench.backends.policies.interface import homes_by_hash
from adabench.harness.estimate.search.accesses import Accesses
from adabench.harness.estimate.search.cost_model import Loads
from adabench.harness.estimate.search.options import (
    BY_HASH,
    HOTTEST,
    WHERE_READ,
    Space,
    Way,
    hottest_first,
    read_most,
    ways_of,
)
from adabench.harness.estimate.search.problem import Choices, Floats, Problem
from adabench.harness.estimate.search.table_costs import Situation, Traffic, allreduced, traffic

__all__ = ["Model", "Objective", "Prediction"]

Objective = Literal["time", "bytes"]
_MICROS = 1e6
_DEALT = 0.1
"""By how much more than an equal part of a row's reads its first reader must have for homes to follow."""
_LOOKAHEAD = 20
_WORDS = 8.0
"""Bytes of a key on each node: docs/concepts/protocol.md, section 17."""


@dataclass(frozen=True)
class Prediction:
    """What a policy is expected to cost.

    Attributes
    ----------
    seconds : float
        Of a step of the slowest worker.
    bytes : float
        That a node sends per step of each of its workers, in the mean.
    memory : float array
        Bytes of rows that each node holds.
    """

    seconds: float
    bytes: float
    memory: Floats


class Model:
    """Costs of all ways to manage a model's tables.

    Parameters
    ----------
    tables : sequence of Served
    accesses : Accesses
    situation : Situation
    space : Space
    """

    def __init__(
        self, tables: Sequence[Served], accesses: Accesses, situation: Situation, space: Space
    ) -> None:
        self.tables, self.accesses, self.space = tuple(tables), accesses, space
        loads = Loads(situation)
        calls = [loads.visits(one, accesses.rates(one).sum(axis=1)).mean() for one in self.tables]
        least = (situation.compute + sum(calls) / _MICROS) / float(situation.speeds.mean())
        self.situation = replace(situation, pace=max(situation.pace, least))
        self._loads = Loads(self.situation)
        self._found: dict[tuple[int, str, int, str, int], Traffic] = {}
        self._added_by: dict[tuple[int, Way], tuple[Floats, Floats]] = {}
        self._ordered = [hottest_first(one, accesses) for one in self.tables]
        self._hashed = [homes_by_hash(one.first_key, one.keys, accesses.nodes) for one in self.tables]

    def at_pace(self, seconds: float) -> Model:
        """The same, if a step takes so long in all."""
        return Model(self.tables, self.accesses, replace(self.situation, pace=seconds), self.space)

    def ways(self, table: int, space: Space | None = None) -> list[Way]:
        """All ways of a space, or of the model's own, in which a table can be managed."""
        served = self.tables[table]
        return list(ways_of(served, space or self.space, self.accesses.nodes, self._is_dealt(served)))

    def problem(
        self, ways: Sequence[Sequence[Way]], objective: Objective, limits: Floats | None = None
    ) -> Problem:
        """Which of these ways to take for each table.

        Parameters
        ----------
        ways : sequence of sequence of Way
            For each table.
        objective : "time" or "bytes"
        limits : float array, optional
            Of each node's memory in bytes.
        """
        loads, memory = [], []
        for table, own in enumerate(ways):
            added = [self._added(table, way) for way in own]
            if objective == "time":
                loads.append(np.stack([load for load, _ in added]))
            else:
                loads.append(np.array([[self.traffic_of(table, way).sent.sum()] for way in own]))
            memory.append(np.stack([kept for _, kept in added]))
        base = self._loads.of_steps() if objective == "time" else np.zeros(1)
        # a key word and a count of intents for each key of each table on every node, which no choice saves
        words = _WORDS * sum(one.keys for one in self.tables)
        memory[0] = memory[0] + words
        return Problem.of(loads, memory, base, limits)

    def prediction(self, ways: Sequence[Way]) -> Prediction:
        """Of a policy."""
        added = [self._added(table, way) for table, way in enumerate(ways)]
        totals = self._loads.of_steps() + sum(load for load, _ in added)
        sent = sum(self.traffic_of(table, way).sent for table, way in enumerate(ways))
        words = _WORDS * sum(one.keys for one in self.tables)
        return Prediction(
            float(totals.max()) / _MICROS,
            float(np.mean(sent)),
            np.asarray(sum(kept for _, kept in added) + words),
        )

    def traffic_of(self, table: int, way: Way) -> Traffic:
        """What a table costs each node so."""
        served = self.tables[table]
        if way.technique == "allreduce":
            floats = served.keys * served.length
            return allreduced(floats, served.keys * served.width, self.situation)
        split = 0 if way.hot is None else HOTTEST.index(way.hottest) + 1
        cold = self._segments(table, way, way.technique).each(lambda parts: parts[:, split:].sum(axis=1))
        if way.hot is None:
            return cold
        return self._segments(table, way, way.hot).each(lambda parts: parts[:, :split].sum(axis=1)) + cold

    def _segments(self, table: int, way: Way, technique: str) -> Traffic:
        ahead = _LOOKAHEAD if way.lookahead is None else way.lookahead
        key = (table, technique, way.home, way.wire, ahead)
        if key not in self._found:
            served, order = self.tables[table], self._ordered[table]
            if way.home == BY_HASH:
                homes = self._hashed[table]
            elif way.home == WHERE_READ:
                homes = read_most(served, self.accesses, self._hashed[table])
            else:
                homes = np.full(served.keys, way.home)
            rates = self.accesses.rates(served)[:, order]
            homes = homes[order]
            begins = np.array([0, *(round(part * served.keys) for part in HOTTEST)])
            kept = np.flatnonzero(np.diff(begins, append=served.keys) > 0)
            found = traffic(*(technique, served, rates, homes, begins[kept], way.wire, ahead), self.situation)

            def with_empty_segments(parts: Floats) -> Floats:
                every = np.zeros((len(parts), len(begins)))
                every[:, kept] = parts
                return every

            self._found[key] = found.each(with_empty_segments)
        return self._found[key]

    def _added(self, table: int, way: Way) -> tuple[Floats, Floats]:
        """Loads and memory of a way."""
        key = (table, way)
        if key not in self._added_by:
            found = self.traffic_of(table, way)
            ahead = _LOOKAHEAD if way.lookahead is None else way.lookahead
            if way.technique == "allreduce":
                loads = self._loads.of_all(found)
            else:
                loads = self._loads.of_table(self.tables[table], found, ahead)
            self._added_by[key] = (loads, found.memory)
        return self._added_by[key]

    def _is_dealt(self, served: Served) -> bool:
        """Whether samples are dealt so that rows have a first reader."""
        if served.dense or self.accesses.nodes == 1:
            return False
        counts = self.accesses.counts[served.table]
        return bool(counts.max(axis=0).sum() > (1 / self.accesses.nodes + _DEALT) * counts.sum())
