"""What each way to manage a table costs each node per step, in closed form: docs/concepts/search.md.

Exact for what does not depend on time, and otherwise what rows that are read independently of each other
would cost.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

import numpy as np

from adabench.backends.interface import Served
from adabench.backends.policies.resources import Resources
from adabench.harness.estimate.search.problem import Choices, Floats
from adaps.simulation import MESSAGE_BYTES

__all__ = ["Situation", "Traffic", "allreduced", "bytes_on_wire", "traffic"]

_REQUEST, _ANSWER, _INTENT, _SETUP, _TRANSFER, _REFRESH = (
    float(MESSAGE_BYTES[name]) for name in ("request", "answer", "intent", "setup", "transfer", "refresh")
)
_DELTA, _ACK, _DROP, _DROP_ACK, _NEWS, _GRADIENT = (
    float(MESSAGE_BYTES[name]) for name in ("delta", "ack", "drop", "drop_ack", "news", "gradient")
)
_HEADER = 16.0
"""Bytes of a row that is held, beside value and state: section 17."""
_ROUNDS = 500.0
"""Of exchange, at most, per second."""
_SHORT, _LONGEST = 16.0, 0.05
"""Bytes of a row that each round takes along; seconds after which every row goes: flush_cadence.h."""
_CERTAIN = 0.9999
_MICROS = 1e6


@dataclass(frozen=True)
class Situation:
    """Where a policy is to be executed.

    Attributes
    ----------
    resources : Resources
        Nodes and links.
    workers : int
        Of each node.
    compute : float
        Seconds that a step computes for, on a machine of the costs' speed.
    pace : float
        Seconds that a step is expected to take in all; at least 0, where only `compute` is known.
    """

    resources: Resources
    workers: int
    compute: float
    pace: float = 0.0

    @property
    def nodes(self) -> int:
        """Of the cluster."""
        return self.resources.nodes

    @property
    def speeds(self) -> Floats:
        """Of each node, in that of the costs' machine."""
        cluster = self.resources.cluster()
        return np.array([machine.speed / cluster.costs.speed for machine in cluster.machines])

    @property
    def step(self) -> float:
        """Seconds that a step is expected to take."""
        return max(self.compute / float(self.speeds.mean()), self.pace, 1e-6)

    def window(self, lookahead: int) -> float:
        """For how many steps a row is wanted that one step reads, if it is announced so many ahead."""
        from scipy import stats

        rounds = 2.0 * max(1.0, 1.0 / (_ROUNDS * self.step))
        return 1.0 + min(float(lookahead), float(stats.poisson.ppf(_CERTAIN, rounds)))


@dataclass
class Traffic:
    """What a node does per step of each of its workers; each field has a number per node and segment of rows.

    Attributes
    ----------
    pulled, remote, copied : float array
        Rows that are read, and those of them that another node is asked for, or of which there is a copy.
    served : float array
        Rows that others ask this node for.
    sent, received : float array
        Bytes.
    messages : float array
        That are sent or received.
    acted : float array
        Intents that a channel acts on.
    late : float array
        Rows that come by an intent.
    memory : float array
        Bytes that are held.
    """

    pulled: Floats
    remote: Floats
    copied: Floats
    served: Floats
    sent: Floats
    received: Floats
    messages: Floats
    acted: Floats
    late: Floats
    memory: Floats

    def of(self, segments: slice) -> Traffic:
        """Of some segments together: a number per node."""
        return Traffic(*(getattr(self, one.name)[:, segments].sum(axis=1) for one in fields(self)))

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def bytes_on_wire(wire: str, floats: int) -> float:
    """Of so many floats, in words of four bytes: int8 has a scale per row."""
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
    """What managing a table's rows so costs, for each of some segments of rows.

    Parameters
    ----------
    technique : str
        Of a rule; not allreduce.
    served : Served
        The table.
    rates : float array
        Nodes × rows, in the order of the segments: how often a step of a worker reads each.
    homes : int array
        The node where each row is at home.
    bounds : int array
        Where each segment begins.
    wire : str
        Of a rule.
    lookahead : int
        Batches that rows are announced ahead.
    situation : Situation
    """
    table = _Table(served, rates, homes, bounds, wire, situation.window(lookahead), situation)
    if technique == "static":
        return table.static()
    if technique == "relocation":
        return table.relocation()
    if technique == "adaptive":
        return table.adaptive()
    return table.replication(everywhere=technique == "full_replication")


def allreduced(floats: int, width: int, situation: Situation) -> Traffic:
    """What averaging so many floats of gradients over all nodes costs, and keeping the parameters here."""
    nodes = situation.nodes
    none, each = np.zeros(nodes), np.ones(nodes)
    ring = 2.0 * (nodes - 1) / nodes * 4.0 * floats
    return Traffic(none, none, none, none, ring * each, ring * each, none, none, none, 4.0 * width * each)


class _Table:
    """Rates of all that can happen to a row, from which techniques take theirs."""

    def __init__(
        self,
        served: Served,
        rates: Floats,
        homes: Choices,
        bounds: Choices,
        wire: str,
        window: float,
        situation: Situation,
    ) -> None:
        self.rates = rates * situation.workers
        self.nodes = len(rates)
        self.homes, self.bounds = homes, bounds
        self.dense = served.dense
        self.pulls = 2.0 if served.dense else 1.0
        self.length, self.held = 4.0 * served.length, _HEADER + 4.0 * served.width
        self.value = bytes_on_wire(wire, served.length)
        self.whole = 4.0 * served.width
        state = served.width - served.length
        # optimizer state travels as bfloat16 where the wire is a lossy one
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
        # a gradient goes itself if it is all that has happened since the last exchange
        self.change = np.where(rates > self.exchanges, rounded, min(rounded, _GRADIENT + self.length))

    def static(self) -> Traffic:
        remote = self.rates * self.away
        return self._asked(remote, self._of_homes(remote.sum(axis=0)), self.at_home * self.held)

    def relocation(self) -> Traffic:
        return self._sum(self._moving(np.ones_like(self.rates)), self._memory_of_movers())

    def replication(self, everywhere: bool) -> Traffic:
        held = self.away * ((self.all > 0) if everywhere else self.wanted)
        copies = self._copying(np.ones_like(self.rates), held, everywhere)
        memory = self.at_home * self.held + (self.away if everywhere else held) * (self.held + self.change)
        return self._sum(copies, memory)

    def adaptive(self) -> Traffic:
        nobody_else = np.ones_like(self.rates)
        for node in range(self.nodes):
            others = [other for other in range(self.nodes) if other != node]
            nobody_else[node] = prod((1.0 - self.wanted[other] for other in others), start=1.0)
        held = self.away * self.wanted * (1.0 - nobody_else)
        both = self._plus(
            self._moving(nobody_else, asking=False), self._copying(1.0 - nobody_else, held, False)
        )
        return self._sum(both, self._memory_of_movers() + held * (self.held + self.change))

    def _asked(self, remote: Floats, served: Floats, memory: Floats) -> Traffic:
        """Rows that nodes ask others for when they need them."""
        asks = self.pulls * _REQUEST + _REQUEST + self.length
        answers = self.pulls * (_ANSWER + self.value) + _ANSWER
        return Traffic(
            self._segments(self.rates),
            self._segments(remote),
            self._segments(np.zeros_like(remote)),
            self._segments(served),
            self._segments(remote * asks + served * answers),
            self._segments(remote * answers + served * asks),
            self._segments(2.0 * (self.pulls + 1.0) * (remote + served)),
            self._segments(np.zeros_like(remote)),
            self._segments(np.zeros_like(remote)),
            self._segments(memory),
        )

    def _moving(self, part: Floats, asking: bool = True) -> list[Floats]:
        """Rows that move to who wants them, in so large a part of accesses."""
        total = np.maximum(self.all, 1e-300)
        moves = part * self.rates * (1.0 - self.rates / total)
        if self.dense or self.nodes == 1:
            moves = np.zeros_like(moves)
        # by way of home, which is told, unless it is one of the two
        by_home = np.clip(1.0 - 2.0 / self.nodes, 0.0, 1.0)
        each = _INTENT * (1.0 + by_home) + _TRANSFER + self.whole + _NEWS * by_home
        # somebody else has taken the row in the meantime
        q = np.maximum(self.wanted, 1e-12)
        local = (1.0 - np.exp(np.log1p(-np.minimum(q, 1 - 1e-12)).sum(axis=0))) / q.sum(axis=0)
        remote = part * self.rates * (1.0 - local) if asking and self.nodes > 1 else np.zeros_like(moves)
        asked = self._asked_evenly(remote)
        return [
            remote,
            np.zeros_like(remote),
            remote,
            moves * each + asked,
            moves * each + asked,
            2.0 * moves * (2.0 + 2.0 * by_home) + 4.0 * (self.pulls + 1.0) * remote,
            part * self.rates,
            moves,
        ]

    def _asked_evenly(self, remote: Floats) -> Floats:
        each = (self.pulls + 1.0) * (_REQUEST + _ANSWER) + self.pulls * self.value + self.length
        return np.asarray(each * remote)

    def _copying(self, part: Floats, held: Floats, everywhere: bool) -> list[Floats]:
        """Rows of which nodes that want them hold copies, and home the original."""
        per_worker = np.minimum(self.rates, 1.0)
        starts = part * self.away * self.rates * (1.0 - self.wanted)
        if everywhere or self.dense:
            starts = np.zeros_like(starts)
        often = self.exchanges
        deltas = held * np.minimum(per_worker, often)
        refreshes = held * np.minimum(np.maximum(self.all - self.rates, 0.0), often)
        out = starts * (_INTENT + _DROP + self.change) + deltas * (_DELTA + self.change)
        back = starts * (_SETUP + self.whole + _DROP_ACK) + deltas * _ACK
        back = back + refreshes * (_REFRESH + self.refresh)
        count = 4.0 * starts + 2.0 * deltas + refreshes
        sent = out + self._of_homes(back.sum(axis=0))
        received = back + self._of_homes(out.sum(axis=0))
        messages = count + self._of_homes(count.sum(axis=0))
        none = np.zeros_like(starts)
        acted = none if everywhere or self.dense else part * self.rates
        copied = part * self.rates * held
        return [none, copied, none, sent, received, messages, acted, starts]

    def _of_homes(self, total: Floats) -> Floats:
        """What concerns each row, at the node where it is at home."""
        return np.asarray(self.at_home * total)

    def _memory_of_movers(self) -> Floats:
        share = np.where(self.all > 0, self.rates / np.maximum(self.all, 1e-300), self.at_home)
        return np.asarray(share * self.held)

    @staticmethod
    def _plus(one: list[Floats], other: list[Floats]) -> list[Floats]:
        return [a + b for a, b in zip(one, other, strict=True)]

    def _sum(self, found: list[Floats], memory: Floats) -> Traffic:
        return Traffic(*map(self._segments, [self.rates, *found, memory]))

    def _segments(self, values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values, self.bounds, axis=1))
