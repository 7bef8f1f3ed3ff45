"""Exceptions that end a simulation before the model's forward returns."""

from __future__ import annotations

from torch import Tensor

from autoada.prediction.source_location import source_line


class SimulationEnd(BaseException):
    """Ends a simulation. It is not an `Exception`, so that ``except Exception`` does not catch it."""


class EnoughSeen(SimulationEnd):
    """Raised after the last expected access."""


class UnknownValueRead(SimulationEnd):
    """Raised if Python requests a value that depends on parameters."""

    def __init__(self, operation: str, where: str) -> None:
        line = source_line(where)
        super().__init__(
            f"`{operation}` reads the value of something that depends on parameters, at {where}{line}"
        )
        self.place = operation, where


class ForeignWrite(SimulationEnd):
    """Raised before an in-place write to memory that the simulation did not create."""

    def __init__(self, target: Tensor) -> None:
        super().__init__("in-place write to a tensor of the batch or the model")
        self.storage = target.untyped_storage().data_ptr()
