"""The cost model: loads, bytes and memory of each option to manage a table: docs/concepts/search.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from adabench.backends.interface import Served
from adabench.harness.estimate.search.accesses import Accesses
from adabench.harness.estimate.search.options import (
    BY_HASH,
    HOTTEST,
    WHERE_READ,
    Space,
    TableOption,
    hottest_first,
    read_most,
    table_options,
)
from adabench.harness.estimate.search.problem import Floats, Problem
from adabench.harness.estimate.search.table_costs import Situation, Traffic, allreduced, traffic
from adaps.policy.executed import homes_by_hash
from adaps.simulation import Costs

Objective = Literal["time", "bytes"]
_MICROS = 1e6
_ROUND = _MICROS / 500.0
"""Microseconds between two rounds of exchange, at least."""
_DEALT = 0.1
"""Excess over an equal part of a row's reads that its most frequent reader must have for homes to follow."""
_LOOKAHEAD = 20
_WORDS = 8.0
"""Bytes of a key on each node: docs/concepts/protocol.md, section 17."""


@dataclass(frozen=True)
class Prediction:
    """Expected costs of a policy.

    Attributes
    ----------
    seconds : float
        Seconds of a step of the slowest worker.
    bytes : float
        Mean bytes that a node sends per step of each of its workers.
    memory : float array
        Bytes of rows that each node holds.
    """

    seconds: float
    bytes: float
    memory: Floats


class CostModel:
    """Costs of all options to manage the tables of a model.

    Parameters
    ----------
    tables : sequence of Served
        Tables of the server.
    accesses : Accesses
        Access counts of the tables.
    situation : Situation
        Cluster, workers and compute time.
    space : Space
        Options that are searched.
    """

    def __init__(
        self, tables: Sequence[Served], accesses: Accesses, situation: Situation, space: Space
    ) -> None:
        self.tables, self.accesses, self.space = tuple(tables), accesses, space
        loads = _Loads(situation)
        calls = [loads.visits(one, accesses.rates(one).sum(axis=1)).mean() for one in self.tables]
        least = (situation.compute + sum(calls) / _MICROS) / float(situation.speeds.mean())
        self.situation = replace(situation, pace=max(situation.pace, least))
        self._loads = _Loads(self.situation)
        self._found: dict[tuple[int, str, int, str, int], Traffic] = {}
        self._added_by: dict[tuple[int, TableOption], tuple[Floats, Floats]] = {}
        self._ordered = [hottest_first(one, accesses) for one in self.tables]
        self._hashed = [homes_by_hash(one.first_key, one.keys, accesses.nodes) for one in self.tables]

    def at_pace(self, seconds: float) -> CostModel:
        """Return the same model for a total step time of `pace` seconds."""
        return CostModel(self.tables, self.accesses, replace(self.situation, pace=seconds), self.space)

    def options(self, table: int, space: Space | None = None) -> list[TableOption]:
        """Return all options of a space, by default the model's own, for managing a table."""
        served = self.tables[table]
        return list(table_options(served, space or self.space, self.accesses.nodes, self._is_dealt(served)))

    def problem(
        self, options: Sequence[Sequence[TableOption]], objective: Objective, limits: Floats | None = None
    ) -> Problem:
        """Return the problem of choosing one of these options for each table.

        Parameters
        ----------
        options : sequence of sequence of TableOption
            Options of each table.
        objective : "time" or "bytes"
            Quantity to minimise.
        limits : float array, optional
            Limits of each node's memory, in bytes.
        """
        loads, memory = [], []
        for table, own in enumerate(options):
            added = [self._added(table, option) for option in own]
            if objective == "time":
                loads.append(np.stack([load for load, _ in added]))
            else:
                loads.append(np.array([[self.traffic_of(table, option).sent.sum()] for option in own]))
            memory.append(np.stack([kept for _, kept in added]))
        base = self._loads.of_steps() if objective == "time" else np.zeros(1)
        # Every node stores a key word and an intent count for each key of each table, with any choice.
        words = _WORDS * sum(one.keys for one in self.tables)
        memory[0] = memory[0] + words
        return Problem.of(loads, memory, base, limits)

    def prediction(self, options: Sequence[TableOption]) -> Prediction:
        """Return the prediction for a policy."""
        added = [self._added(table, option) for table, option in enumerate(options)]
        totals = self._loads.of_steps() + sum(load for load, _ in added)
        sent = sum(self.traffic_of(table, option).sent for table, option in enumerate(options))
        words = _WORDS * sum(one.keys for one in self.tables)
        return Prediction(
            float(totals.max()) / _MICROS,
            float(np.mean(sent)),
            np.asarray(sum(kept for _, kept in added) + words),
        )

    def traffic_of(self, table: int, option: TableOption) -> Traffic:
        """Return each node's traffic for a table that is managed by an option."""
        served = self.tables[table]
        if option.technique == "allreduce":
            floats = served.keys * served.length
            return allreduced(floats, served.keys * served.width, self.situation)
        split = 0 if option.hot is None else HOTTEST.index(option.hottest) + 1
        cold = self._segments(table, option, option.technique).each(
            lambda parts: parts[:, split:].sum(axis=1)
        )
        if option.hot is None:
            return cold
        return (
            self._segments(table, option, option.hot).each(lambda parts: parts[:, :split].sum(axis=1)) + cold
        )

    def _segments(self, table: int, option: TableOption, technique: str) -> Traffic:
        ahead = _LOOKAHEAD if option.lookahead is None else option.lookahead
        key = (table, technique, option.home, option.wire, ahead)
        if key not in self._found:
            served, order = self.tables[table], self._ordered[table]
            if option.home == BY_HASH:
                homes = self._hashed[table]
            elif option.home == WHERE_READ:
                homes = read_most(served, self.accesses, self._hashed[table])
            else:
                homes = np.full(served.keys, option.home)
            rates = self.accesses.rates(served)[:, order]
            homes = homes[order]
            begins = np.array([0, *(round(part * served.keys) for part in HOTTEST)])
            kept = np.flatnonzero(np.diff(begins, append=served.keys) > 0)
            found = traffic(
                *(technique, served, rates, homes, begins[kept], option.wire, ahead), self.situation
            )

            def with_empty_segments(parts: Floats) -> Floats:
                every = np.zeros((len(parts), len(begins)))
                every[:, kept] = parts
                return every

            self._found[key] = found.each(with_empty_segments)
        return self._found[key]

    def _added(self, table: int, option: TableOption) -> tuple[Floats, Floats]:
        """Return the loads and the memory of an option."""
        key = (table, option)
        if key not in self._added_by:
            found = self.traffic_of(table, option)
            ahead = _LOOKAHEAD if option.lookahead is None else option.lookahead
            if option.technique == "allreduce":
                loads = self._loads.of_all(found)
            else:
                loads = self._loads.of_table(self.tables[table], found, ahead)
            self._added_by[key] = (loads, found.memory)
        return self._added_by[key]

    def _is_dealt(self, served: Served) -> bool:
        """Whether samples are partitioned so that each row has a main reader."""
        if served.dense or self.accesses.nodes == 1:
            return False
        counts = self.accesses.counts[served.table]
        return bool(counts.max(axis=0).sum() > (1 / self.accesses.nodes + _DEALT) * counts.sum())


@dataclass(frozen=True)
class _Loads:
    """Loads of a node: the time of its workers, its cores, and its network card in both directions."""

    situation: Situation

    def of_steps(self) -> Floats:
        """Return the loads of a step without any table: computing, and signalling intent."""
        speeds, cores = self.situation.speeds, self._cores
        micros = (_MICROS * self.situation.compute + self._costs.call) / speeds
        none = np.zeros(len(speeds))
        return np.concatenate([micros, self.situation.workers * micros / cores, none, none])

    def of_table(self, served: Served, found: Traffic, lookahead: int) -> Floats:
        """Return the loads that a table adds.

        Parameters
        ----------
        served : Served
            Table of the server.
        found : Traffic
            Traffic of the table; each field has one number for each node.
        lookahead : int
            Number of batches for which intent is signalled in advance.
        """
        costs, workers, others = self._costs, self.situation.workers, max(self.situation.nodes - 1, 1)
        calls = _calls_of(served)
        remote = found.remote / workers
        asked = others * -np.expm1(-remote / others)  # Number of nodes to which a call sends requests.
        asking = workers * asked.sum() * found.served / max(found.served.sum(), 1e-300)
        background = np.maximum(found.messages - 2.0 * calls * (found.remote + found.served), 0.0)
        rounds = 2.0 * others * -np.expm1(-background / (2.0 * others))  # Number of frames of these requests.
        frames = 2.0 * calls * (workers * asked + asking) + rounds
        turns = calls * (2.0 * workers * -np.expm1(-remote) + asking) + rounds / 2.0
        channel = (
            (costs.call + costs.wake) * turns
            + costs.frame * frames
            + costs.message * (found.messages - background)
            + costs.upkeep * background
            + costs.byte * (found.sent + found.received)
            + costs.intent * found.acted
        )
        speeds = self.situation.speeds
        dearer = (costs.elsewhere * found.remote + costs.copy * found.copied) / workers
        visits = self.visits(served, found.pulled / workers) + calls * dearer
        visits = visits - costs.resume * np.expm1(-remote)  # The time if the worker waits before it computes.
        path = visits / speeds + self._waits(found, calls, asked, lookahead)
        cores = (workers * visits + channel) / speeds / self._cores
        card = self._cards
        return np.concatenate([path, cores, found.sent / card, found.received / card])

    def of_all(self, found: Traffic) -> Floats:
        """Return the loads of averaging gradients in a ring: 2 (n - 1) messages, one after the other."""
        nodes = self.situation.nodes
        if nodes == 1:
            return np.zeros(4)
        latency, width = self._links
        path = 2.0 * (nodes - 1) * latency.max() + found.sent / width.min()
        worked = self._costs.byte * (found.sent + found.received) / self.situation.speeds
        card = self._cards
        return np.concatenate([path, worked / self._cores, found.sent / card, found.received / card])

    def visits(self, served: Served, keys: Floats) -> Floats:
        """Return microseconds at speed 1 of a worker's calls for some keys, as if all were on its node."""
        costs, calls = self._costs, _calls_of(served)
        announced = 0.0 if served.dense else 1.0
        each = (calls + announced) * costs.key + calls * costs.value * 4.0 * served.length
        return np.asarray(calls * costs.call + each * keys)

    def _waits(self, found: Traffic, calls: float, asked: Floats, lookahead: int) -> Floats:
        """Return the time that a worker waits for answers, and for rows that arrive late."""
        nodes, workers = self.situation.nodes, self.situation.workers
        if nodes == 1:
            return np.zeros(1)
        costs, speeds = self._costs, self.situation.speeds
        latency, width = self._links
        remote = found.remote / workers
        # Part of the bytes sent and received that belongs to this worker's own requests, in one call.
        own = found.remote / np.maximum(found.remote + found.served, 1e-300)
        bytes_of_call = np.where(remote > 0, own * (found.sent + found.received), 0.0) / workers / calls
        # This node's channel wakes twice, and then the worker. The other node's channel wakes once.
        here = (
            2.0 * costs.call
            + 3.0 * costs.wake
            + 2.0 * costs.frame * asked
            + 2.0 * costs.message * remote
            + costs.byte * bytes_of_call
        )
        each = np.maximum(asked, 1.0)  # The nodes work at the same time.
        there = (
            costs.call
            + costs.wake
            + 2.0 * costs.frame
            + (2.0 * costs.message * remote + costs.byte * bytes_of_call) / each
        )
        answered = 2.0 * latency + here / speeds + there / speeds.min() + bytes_of_call / each / width
        late = np.maximum(2.0 * latency + _ROUND - lookahead * _MICROS * self.situation.step, 0.0)
        return np.asarray(calls * -np.expm1(-remote) * answered + late * -np.expm1(-found.late / workers))

    @property
    def _costs(self) -> Costs:
        return self.situation.resources.cluster().costs

    @property
    def _cores(self) -> Floats:
        return np.array([float(one.cores) for one in self.situation.resources.node])

    @property
    def _links(self) -> tuple[Floats, Floats]:
        """Return the longest latency (µs) and the lowest rate (bytes per µs) of each node's links."""
        resources, nodes = self.situation.resources, self.situation.nodes
        own = [[resources.between(n, m) for m in range(nodes) if m != n] for n in range(nodes)]
        latency = [max(1e3 * link.latency_ms for link in links) for links in own]
        width = [min(125.0 * link.gbit_per_second for link in links) for links in own]
        return np.array(latency), np.array(width)

    @property
    def _cards(self) -> Floats:
        """Return the bytes per microsecond of each node's network card."""
        resources, nodes = self.situation.resources, self.situation.nodes
        found = []
        for n, node in enumerate(resources.node):
            links = [resources.between(n, m).gbit_per_second for m in range(nodes) if m != n]
            found.append(125.0 * (node.gbit_per_second or max(links, default=1.0)))
        return np.array(found)


def _calls_of(served: Served) -> float:
    """Return pulls and pushes of a table per step: dense parameters are pulled before and after it."""
    return 3.0 if served.dense else 2.0
