"""Traffic of each node per step for each option to manage a table, in closed form: docs/concepts/search.md.

The traffic is exact where it does not depend on time. Elsewhere it assumes that rows are read independently
of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any

import numpy as np

from adabench.backends.interface import Served
from adabench.backends.policies.resources import Resources
from adabench.harness.estimate.search.problem import Choices, Floats
from adaps.simulation import MESSAGE_BYTES

_REQUEST, _ANSWER, _INTENT, _SETUP, _TRANSFER, _REFRESH = (
    float(MESSAGE_BYTES[name]) for name in ("request", "answer", "intent", "setup", "transfer", "refresh")
)
_DELTA, _ACK, _DROP, _DROP_ACK, _NEWS, _GRADIENT = (
    float(MESSAGE_BYTES[name]) for name in ("delta", "ack", "drop", "drop_ack", "news", "gradient")
)
_HEADER = 16.0
"""Bytes of a row in addition to its value and state: section 17."""
_ROUNDS = 500.0
"""Maximum rounds of exchange per second."""
_SHORT, _LONGEST = 16.0, 0.05
"""Bytes of rows that are sent in every round; seconds after which all changes are sent (flush_cadence.h)."""
_CERTAIN = 0.9999
_MICROS = 1e6


@dataclass(frozen=True)
class Situation:
    """The cluster and the training job that a policy is made for.

    Attributes
    ----------
    resources : Resources
        Nodes and links.
    workers : int
        Number of workers per node.
    compute : float
        Compute time of a step in seconds, on a machine of speed 1.
    pace : float
        Expected total time of a step in seconds; 0 if only `compute` is known.
    """

    resources: Resources
    workers: int
    compute: float
    pace: float = 0.0

    @property
    def nodes(self) -> int:
        """Number of nodes in the cluster."""
        return self.resources.nodes

    @property
    def speeds(self) -> Floats:
        """Speed of each node, relative to the machine of the costs."""
        cluster = self.resources.cluster()
        return np.array([machine.speed / cluster.costs.speed for machine in cluster.machines])

    @property
    def step(self) -> float:
        """Expected seconds of a step."""
        return max(self.compute / float(self.speeds.mean()), self.pace, 1e-6)

    def window(self, lookahead: int) -> float:
        """Return the number of steps that a node needs a row for one read with this lookahead."""
        from scipy import stats

        rounds = 2.0 * max(1.0, 1.0 / (_ROUNDS * self.step))
        return 1.0 + min(float(lookahead), float(stats.poisson.ppf(_CERTAIN, rounds)))


def _nothing() -> Floats:
    return np.zeros((1, 1))


@dataclass(frozen=True)
class Traffic:
    """Traffic of a node per step of each of its workers, by node and row or in sums.

    Attributes
    ----------
    pulled, remote, copied : float array
        Rows that are read, rows that are requested from another node, and rows that are read in a copy.
    served : float array
        Rows that other nodes request from this node.
    sent, received : float array
        Bytes that the node sends and receives.
    messages : float array
        Messages that are sent or received.
    acted : float array
        Intents on which a channel acts.
    late : float array
        Rows that arrive because of an intent.
    memory : float array
        Bytes of the rows that a node holds.
    """

    pulled: Floats = field(default_factory=_nothing)
    remote: Floats = field(default_factory=_nothing)
    copied: Floats = field(default_factory=_nothing)
    served: Floats = field(default_factory=_nothing)
    sent: Floats = field(default_factory=_nothing)
    received: Floats = field(default_factory=_nothing)
    messages: Floats = field(default_factory=_nothing)
    acted: Floats = field(default_factory=_nothing)
    late: Floats = field(default_factory=_nothing)
    memory: Floats = field(default_factory=_nothing)

    def each(self, function: Callable[[Any], Any]) -> Traffic:
        """Return the traffic with a function applied to each field."""
        return Traffic(*(function(getattr(self, one.name)) for one in fields(self)))

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def bytes_on_wire(wire: str, floats: int) -> float:
    """Return the bytes of some floats on the wire, in words of four bytes. With int8 each row has a scale."""
    if wire == "float32":
        return 4.0 * floats
    per_word = 4 if wire == "int8" else 2
    return 4.0 * (-(-floats // per_word) + (wire == "int8"))


def traffic(
    technique: str,
    served: Served,
    rates: Floats,
    homes: Choices,
    bounds: Choices,
    wire: str,
    lookahead: int,
    situation: Situation,
) -> Traffic:
    """Return the traffic of a technique for each of some segments of a table's rows.

    Parameters
    ----------
    technique : str
        Technique, as in a rule; not allreduce.
    served : Served
        Table of the server.
    rates : float array
        Reads of each row per step of a worker: nodes × rows, in the order of the segments.
    homes : int array
        Home node of each row.
    bounds : int array
        First index of each segment.
    wire : str
        Wire type, as in a rule.
    lookahead : int
        Number of batches by which intent is signalled ahead.
    situation : Situation
        Cluster, workers and compute time.
    """
    table = _Table(served, rates, homes, wire, situation.window(lookahead), situation)
    if technique == "static":
        found = table.static()
    elif technique == "relocation":
        found = table.relocation()
    elif technique == "adaptive":
        found = table.adaptive()
    else:
        found = table.replication(everywhere=technique == "full_replication")
    found = found + Traffic(pulled=table.rates)
    return found.each(lambda rows: np.add.reduceat(np.broadcast_to(rows, rates.shape), bounds, axis=1))


def allreduced(floats: int, width: int, situation: Situation) -> Traffic:
    """Return the traffic of averaging some gradients over all nodes, with the parameters on each node."""
    ring = np.full(situation.nodes, 2.0 * (situation.nodes - 1) / situation.nodes * 4.0 * floats)
    none, memory = np.zeros(situation.nodes), np.full(situation.nodes, 4.0 * width)
    return Traffic(none, none, none, none, ring, ring, none, none, none, memory)


class _Table:
    """Rates of all events of a row; each technique uses some of them."""

    def __init__(
        self, served: Served, rates: Floats, homes: Choices, wire: str, window: float, situation: Situation
    ) -> None:
        self.rates = rates * situation.workers
        self.nodes = len(rates)
        self.dense = served.dense
        self.pulls = 2.0 if served.dense else 1.0
        self.length, self.held = 4.0 * served.length, _HEADER + 4.0 * served.width
        self.value = bytes_on_wire(wire, served.length)
        self.whole = 4.0 * served.width
        state = served.width - served.length
        # Optimizer state is sent as bfloat16 if the wire is lossy.
        rounded = self.value + (4.0 * state if wire == "float32" else bytes_on_wire("bfloat16", state))
        self.refresh = rounded
        at_home = homes[None, :] == np.arange(self.nodes)[:, None]
        self.at_home = at_home.astype(np.float64)
        self.away = 1.0 - self.at_home
        self.all = self.rates.sum(axis=0)
        seldom = np.minimum(rates, 1.0)
        forever = rates >= 1.0 if served.dense else np.zeros(rates.shape, dtype=bool)
        self.wanted = np.where(forever, 1.0, 1.0 - (1.0 - seldom) ** (window * situation.workers))
        interval = max(1.0, np.floor(np.sqrt(4.0 * served.width / _SHORT)))
        step = situation.step
        self.exchanges = min(1.0, max(1.0 / interval, step / _LONGEST), max(_ROUNDS * step, 1e-9))
        # If there was only one gradient since the last exchange, the gradient is sent instead of the change.
        self.change = np.where(rates > self.exchanges, rounded, min(rounded, _GRADIENT + self.length))

    def static(self) -> Traffic:
        """Return the traffic of rows that nodes request from others when needed."""
        remote = self.rates * self.away
        served = self._of_homes(remote.sum(axis=0))
        asks = self.pulls * _REQUEST + _REQUEST + self.length
        answers = self.pulls * (_ANSWER + self.value) + _ANSWER
        return Traffic(
            remote=remote,
            served=served,
            sent=remote * asks + served * answers,
            received=remote * answers + served * asks,
            messages=2.0 * (self.pulls + 1.0) * (remote + served),
            memory=self.at_home * self.held,
        )

    def relocation(self) -> Traffic:
        return self._moving(np.ones_like(self.rates)) + self._memory_of_movers()

    def replication(self, everywhere: bool) -> Traffic:
        held = self.away * ((self.all > 0) if everywhere else self.wanted)
        copies = self._copying(np.ones_like(self.rates), held, everywhere)
        kept = (self.away if everywhere else held) * (self.held + self.change)
        return copies + Traffic(memory=self.at_home * self.held + kept)

    def adaptive(self) -> Traffic:
        alone = np.ones_like(self.rates)
        for node in range(self.nodes):
            others = [other for other in range(self.nodes) if other != node]
            alone[node] = prod((1.0 - self.wanted[other] for other in others), start=1.0)
        held = self.away * self.wanted * (1.0 - alone)
        moved = self._moving(alone, asking=False) + self._memory_of_movers()
        copied = self._copying(1.0 - alone, held, everywhere=False)
        return moved + copied + Traffic(memory=held * (self.held + self.change))

    def _moving(self, part: Floats, asking: bool = True) -> Traffic:
        """Return the traffic of rows that move to the node that needs them, for this part of the accesses."""
        total = np.maximum(self.all, 1e-300)
        moves = part * self.rates * (1.0 - self.rates / total)
        if self.dense or self.nodes == 1:
            moves = np.zeros_like(moves)
        # The home node takes part in a move unless it is one of the two nodes.
        by_home = np.clip(1.0 - 2.0 / self.nodes, 0.0, 1.0)
        each = _INTENT * (1.0 + by_home) + _TRANSFER + self.whole + _NEWS * by_home
        # A row is remote if another node has taken it in the meantime.
        q = np.maximum(self.wanted, 1e-12)
        local = (1.0 - np.exp(np.log1p(-np.minimum(q, 1 - 1e-12)).sum(axis=0))) / q.sum(axis=0)
        remote = part * self.rates * (1.0 - local) if asking and self.nodes > 1 else np.zeros_like(moves)
        asked = (self.pulls + 1.0) * (_REQUEST + _ANSWER) + self.pulls * self.value + self.length
        return Traffic(
            remote=remote,
            served=remote,
            sent=moves * each + asked * remote,
            received=moves * each + asked * remote,
            messages=2.0 * moves * (2.0 + 2.0 * by_home) + 4.0 * (self.pulls + 1.0) * remote,
            acted=part * self.rates,
            late=moves,
        )

    def _copying(self, part: Floats, held: Floats, everywhere: bool) -> Traffic:
        """Return the traffic of rows that stay at their home node and are copied to nodes that need them."""
        per_worker = np.minimum(self.rates, 1.0)
        starts = part * self.away * self.rates * (1.0 - self.wanted)
        if everywhere or self.dense:
            starts = np.zeros_like(starts)
        deltas = held * np.minimum(per_worker, self.exchanges)
        refreshes = held * np.minimum(np.maximum(self.all - self.rates, 0.0), self.exchanges)
        out = starts * (_INTENT + _DROP + self.change) + deltas * (_DELTA + self.change)
        back = starts * (_SETUP + self.whole + _DROP_ACK) + deltas * _ACK
        back = back + refreshes * (_REFRESH + self.refresh)
        count = 4.0 * starts + 2.0 * deltas + refreshes
        return Traffic(
            copied=part * self.rates * held,
            sent=out + self._of_homes(back.sum(axis=0)),
            received=back + self._of_homes(out.sum(axis=0)),
            messages=count + self._of_homes(count.sum(axis=0)),
            acted=np.zeros_like(starts) if everywhere or self.dense else part * self.rates,
            late=starts,
        )

    def _of_homes(self, total: Floats) -> Floats:
        """Sums over nodes, at the home node of each row."""
        return np.asarray(self.at_home * total)

    def _memory_of_movers(self) -> Traffic:
        share = np.where(self.all > 0, self.rates / np.maximum(self.all, 1e-300), self.at_home)
        return Traffic(memory=share * self.held)
