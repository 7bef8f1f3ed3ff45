"""From what a table costs each node to what it adds to workers, cores and network cards, in microseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adabench.backends.interface import Served
from adabench.harness.estimate.search.problem import Floats
from adabench.harness.estimate.search.table_costs import Situation, Traffic
from adaps.simulation import Costs

__all__ = ["Loads"]

_MICROS = 1e6
_ROUND = _MICROS / 500.0
"""Microseconds between two rounds of exchange, at least."""


@dataclass(frozen=True)
class Loads:
    """Loads of a node: its workers' own time, its cores, and its network card in both directions.

    Parameters
    ----------
    situation : Situation
    """

    situation: Situation

    def of_steps(self) -> Floats:
        """What a step takes without any table: it computes, and announces."""
        speeds, cores = self.situation.speeds, self._cores
        micros = (_MICROS * self.situation.compute + self._costs.call) / speeds
        none = np.zeros(len(speeds))
        return np.concatenate([micros, self.situation.workers * micros / cores, none, none])

    def of_table(self, served: Served, found: Traffic, lookahead: int) -> Floats:
        """What a table adds.

        Parameters
        ----------
        served : Served
        found : Traffic
            A number per node.
        lookahead : int
            Batches that its rows are announced ahead.
        """
        costs, workers, others = self._costs, self.situation.workers, max(self.situation.nodes - 1, 1)
        calls = calls_of(served)
        remote = found.remote / workers
        asked = others * -np.expm1(-remote / others)  # nodes that a call asks
        asking = workers * asked.sum() * found.served / max(found.served.sum(), 1e-300)
        background = np.maximum(found.messages - 2.0 * calls * (found.remote + found.served), 0.0)
        rounds = 2.0 * others * -np.expm1(-background / (2.0 * others))  # frames of them
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
        visits = visits - costs.resume * np.expm1(-remote)  # if it waits before it computes
        path = visits / speeds + self._waits(found, calls, asked, lookahead)
        cores = (workers * visits + channel) / speeds / self._cores
        card = self._cards
        return np.concatenate([path, cores, found.sent / card, found.received / card])

    def of_all(self, found: Traffic) -> Floats:
        """What gradients add that are averaged in a ring: 2 (n - 1) messages, one after the other."""
        nodes = self.situation.nodes
        if nodes == 1:
            return np.zeros(4)
        latency, width = self._links
        path = 2.0 * (nodes - 1) * latency.max() + found.sent / width.min()
        worked = self._costs.byte * (found.sent + found.received) / self.situation.speeds
        card = self._cards
        return np.concatenate([path, worked / self._cores, found.sent / card, found.received / card])

    def visits(self, served: Served, keys: Floats) -> Floats:
        """A worker's calls about so many keys, as if all were on its node: microseconds at speed 1."""
        costs, calls = self._costs, calls_of(served)
        announced = 0.0 if served.dense else 1.0
        each = (calls + announced) * costs.key + calls * costs.value * 4.0 * served.length
        return np.asarray(calls * costs.call + each * keys)

    def _waits(self, found: Traffic, calls: float, asked: Floats, lookahead: int) -> Floats:
        """A worker waits for answers, and for rows that come later than they are needed."""
        nodes, workers = self.situation.nodes, self.situation.workers
        if nodes == 1:
            return np.zeros(1)
        costs, speeds = self._costs, self.situation.speeds
        latency, width = self._links
        remote = found.remote / workers
        # of what is sent and received, what belongs to this worker's own requests, in one call
        own = found.remote / np.maximum(found.remote + found.served, 1e-300)
        bytes_of_call = np.where(remote > 0, own * (found.sent + found.received), 0.0) / workers / calls
        # its own channel wakes twice, and then the worker; the other node's wakes once
        here = (
            2.0 * costs.call
            + 3.0 * costs.wake
            + 2.0 * costs.frame * asked
            + 2.0 * costs.message * remote
            + costs.byte * bytes_of_call
        )
        each = np.maximum(asked, 1.0)  # they work at the same time
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
        """Of each node's links the longest latency, in microseconds, and the least bytes per microsecond."""
        resources, nodes = self.situation.resources, self.situation.nodes
        own = [[resources.between(n, m) for m in range(nodes) if m != n] for n in range(nodes)]
        latency = [max(1e3 * link.latency_ms for link in links) for links in own]
        width = [min(125.0 * link.gbit_per_second for link in links) for links in own]
        return np.array(latency), np.array(width)

    @property
    def _cards(self) -> Floats:
        """Bytes per microsecond of each node's network card."""
        resources, nodes = self.situation.resources, self.situation.nodes
        found = []
        for n, node in enumerate(resources.node):
            links = [resources.between(n, m).gbit_per_second for m in range(nodes) if m != n]
            found.append(125.0 * (node.gbit_per_second or max(links, default=1.0)))
        return np.array(found)


def calls_of(served: Served) -> float:
    """Pulls and pushes of a table per step: dense parameters are pulled before and after it."""
    return 3.0 if served.dense else 2.0
