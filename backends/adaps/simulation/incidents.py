"""Incidents that slow nodes down, or end them, during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaps import _argument_checks
from adaps.simulation.streams import Stream

__all__ = ["Incident", "LostNode", "Stall", "Straggler", "events_of"]


@dataclass(frozen=True)
class Straggler:
    """A node that is slower than its machine during some steps.

    Parameters
    ----------
    node : int
        Rank of the node.
    speed : float
        Remaining part of its machine's speed, above 0.
    begin, end : int
        First and last number of completed steps of the node's first worker between which the node is slower.
    """

    node: int
    speed: float
    begin: int
    end: int

    def __post_init__(self) -> None:
        _argument_checks.whole("begin of a straggler", self.begin, "steps")
        _argument_checks.whole("end of a straggler", self.end, "steps")
        _argument_checks.positive("speed of a straggler", self.speed)
        if self.end <= self.begin:
            raise ValueError(
                f"node {self.node} straggles from step {self.begin} to {self.end}: its end must be after "
                f"its begin"
            )


@dataclass(frozen=True)
class Stall:
    """A node with threads that all stop for a while.

    Parameters
    ----------
    node : int
        Rank of the node.
    step : int
        Number of steps that the node's first worker has completed when the stall begins.
    seconds : float
        Duration in seconds. It must be less than half of ``peer_timeout``, or other nodes may consider the
        node lost.
    """

    node: int
    step: int
    seconds: float

    def __post_init__(self) -> None:
        _argument_checks.whole("step of a stall", self.step, "steps")
        _argument_checks.seconds("duration of a stall", self.seconds)


@dataclass(frozen=True)
class LostNode:
    """A node with a permanent failure of its machine or cable. It sends nothing any more.

    Parameters
    ----------
    node : int
        Rank of the node.
    step : int
        Number of steps that its first worker has completed when the node is lost.
    """

    node: int
    step: int

    def __post_init__(self) -> None:
        _argument_checks.whole("step of a lost node", self.step, "steps")


Incident = Straggler | Stall | LostNode

_Event = tuple[str, int, int, float]
"""Kind, node, step, and speed or microseconds."""


def events_of(incidents: Sequence[Incident], firsts: Sequence[Stream], peer_timeout: float) -> list[_Event]:
    """Return incidents for the core. `firsts` has the streams of each node's first worker."""
    events: list[_Event] = []
    for number, incident in enumerate(incidents):
        step = incident.begin if isinstance(incident, Straggler) else incident.step
        node = _argument_checks.whole("node of an incident", incident.node, "nodes")
        if node >= len(firsts):
            raise ValueError(
                f"an incident is at node {node}; it must be at a node from 0 to {len(firsts) - 1}"
            )
        if step >= len(firsts[node].steps):
            raise ValueError(
                f"an incident is at step {step} of node {node}; it must be at a step from 0 to "
                f"{len(firsts[node].steps) - 1}"
            )
        if isinstance(incident, Stall) and incident.seconds >= peer_timeout / 2:
            raise ValueError(
                f"node {node} stalls for {incident.seconds:g} s, but other nodes may report it as lost after "
                f"{peer_timeout / 2:g} s, half of peer_timeout: use a shorter stall, or a LostNode"
            )
        for before in incidents[:number]:
            if before.node == node:
                _check_together(before, incident)
        if isinstance(incident, Straggler):
            events += [("speed", node, step, incident.speed), ("speed", node, incident.end, 1.0)]
        elif isinstance(incident, Stall):
            events.append(("stall", node, step, incident.seconds * 1e6))
        else:
            events.append(("loss", node, step, 0.0))
    # If one straggler's end coincides with another's begin, the end comes first.
    return sorted(events, key=lambda event: (event[2], event[0] != "speed" or event[3] != 1.0))


def _check_together(one: Incident, other: Incident) -> None:
    """Raise ValueError if two incidents of one node are incompatible."""
    node = one.node
    if isinstance(one, Straggler) and isinstance(other, Straggler):
        if other.begin < one.end and one.begin < other.end:
            raise ValueError(
                f"node {node} straggles from step {one.begin} to {one.end} and from {other.begin} to "
                f"{other.end}: give steps that do not overlap"
            )
    elif isinstance(one, Stall) and isinstance(other, Stall):
        if one.step == other.step:
            raise ValueError(
                f"node {node} stalls twice at step {one.step}: give one stall with the sum of the durations"
            )
    elif isinstance(one, LostNode) and isinstance(other, LostNode):
        raise ValueError(f"node {node} is lost twice, at steps {one.step} and {other.step}: give one loss")
