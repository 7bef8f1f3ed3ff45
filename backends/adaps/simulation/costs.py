"""Processor time of the server's operations, which the simulator adds up."""

from __future__ import annotations

from dataclasses import dataclass, fields

from adaps import _argument_checks

__all__ = ["Costs"]


@dataclass(frozen=True)
class Costs:
    """Processor time of the server, in microseconds of one core.

    The defaults are rounded values of the recorded study ``predictions``. ``adabench resources --costs``
    measures the values of this machine.

    Parameters
    ----------
    call : float
        Cost of a worker's call, and of each time that a channel's thread checks for work.
    wake : float
        Cost of a thread's wake-up after a wait; 0 if `frame` includes it.
    resume : float
        Additional computing time of a worker's step after a wait.
    key : float
        Cost of a key that a worker reads, writes or signals intent for.
    value : float
        Cost of a byte of the rows that a worker reads or writes.
    copy : float
        Additional cost of a key with a replica on this node, because the worker records the change for the
        owner.
    elsewhere : float
        Additional cost, at the worker, of a key that is requested from another node.
    intent : float
        Cost of an intent for a key on which a channel acts, for its begin and its end.
    message : float
        Cost of a request or an answer, at each end.
    upkeep : float
        Cost, at each end, of a message that determines a row's location, moves or copies it, or updates
        copies.
    frame, byte : float
        Cost of a frame, and of a byte of a frame, at each end.
    speed : float
        Speed of the machine of these costs. On a machine with half the speed, all costs double.
    """

    call: float = 0.2
    wake: float = 10.0
    resume: float = 50.0
    key: float = 0.01
    value: float = 0.00006
    copy: float = 0.02
    elsewhere: float = 0.0
    intent: float = 0.1
    message: float = 0.04
    upkeep: float = 0.03
    frame: float = 0.4
    byte: float = 0.0005
    speed: float = 1.0

    def __post_init__(self) -> None:
        for name in _OPERATIONS:
            _argument_checks.number(f"cost of {_OPERATIONS[name]}", getattr(self, name), low=0.0)
        _argument_checks.positive("speed of the machine of the costs", self.speed)

    def in_order(self) -> tuple[float, ...]:
        """Return the costs in the order of the fields, for the core."""
        return tuple(getattr(self, field.name) for field in fields(self) if field.name in _OPERATIONS)


_OPERATIONS = {
    "call": "a call",
    "wake": "waking",
    "resume": "going on after a wait",
    "key": "a key",
    "value": "a byte of a value",
    "copy": "a key of a copy",
    "elsewhere": "a key elsewhere",
    "intent": "an intent",
    "message": "a message",
    "upkeep": "a message of upkeep",
    "frame": "a frame",
    "byte": "a byte",
}
"""Operation with the cost of each field, for messages."""
