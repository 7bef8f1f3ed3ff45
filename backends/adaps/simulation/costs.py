"""CPU time of the server's operations, which the simulator adds up."""

from __future__ import annotations

from dataclasses import dataclass, fields

from adaps import _argument_checks

__all__ = ["Costs"]


@dataclass(frozen=True)
class Costs:
    """CPU time of the server, in microseconds of one core.

    Defaults are rounded from those of the recorded study ``predictions``; ``adabench resources --costs``
    measures this machine's.

    Parameters
    ----------
    call : float
        Cost of a worker's call, and of each time that a channel's thread looks for work.
    wake : float
        Cost of a thread that goes on after it has waited; 0 where `frame` includes it.
    resume : float
        Additional time of a step that a worker computes after it has waited.
    key : float
        Cost of a key that a worker reads, writes or announces.
    value : float
        Cost of a byte of the rows that a worker reads or writes.
    copy : float
        Additional cost of a key that is a replica here: the worker notes the change for the owner.
    elsewhere : float
        Additional cost, at the worker, of a key that another node has to be asked for.
    intent : float
        Cost of an announced key that a channel acts on, its begin and its end.
    message : float
        Cost of a question or an answer, at each end.
    upkeep : float
        Cost, at each end, of a message that decides where a row is, moves or copies it, or updates copies.
    frame, byte : float
        Cost of a frame, and of a byte of frames, at each end.
    speed : float
        Speed of the machine where these were measured: on one of half the speed all takes twice as long.
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
        """The costs in the order in which the core takes them, which is that of the fields."""
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
"""The operation that each field is the cost of, as messages name it."""
