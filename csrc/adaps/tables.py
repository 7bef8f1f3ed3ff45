"""Tables as a user describes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from adaps import _checks, _core
from adaps.initializers import Constant, Initializer
from adaps.optimizers import SGD, Optimizer

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """Rows of float32 values under consecutive keys.

    Parameters
    ----------
    name : str
        How ``node.table(name)`` finds it.
    rows, length : int
        Number of rows, and of floats in each. A row with its optimizer's state must fit into one message of
        64 MiB, so it has at most 16,777,200 floats.
    optimizer : SGD, Adagrad, RowAdagrad, Adam, AdamW, SparseAdam or RMSprop
        What ``push_gradients`` does. Its state lives beside the value.
    init : Constant, Uniform or Normal
        What a row holds before anybody writes to it.
    """

    name: str
    rows: int
    length: int
    optimizer: Optimizer = field(default_factory=SGD)
    init: Initializer = field(default_factory=Constant)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"table name {self.name!r}: it must be a string that is not empty")
        _checks.count(f"rows of table {self.name!r}", self.rows, most=_core.MAX_KEYS)
        _checks.count(f"length of table {self.name!r}", self.length, most=_core.MAX_ROW_FLOATS)
        if not isinstance(self.optimizer, Optimizer):
            raise TypeError(
                f"optimizer of table {self.name!r} is {self.optimizer!r}; "
                "it must be an adaps.SGD, Adagrad, RowAdagrad, Adam, AdamW, SparseAdam or RMSprop"
            )
        if not isinstance(self.init, Initializer):
            raise TypeError(
                f"init of table {self.name!r} is {self.init!r}; "
                "it must be an adaps.Constant, Uniform or Normal"
            )
        self.spec()  # refuses a row that is too long with its optimizer's state

    def spec(self) -> _core.TableSpec:
        """The table as the core takes it."""
        return _core.TableSpec(
            self.name, self.rows, self.length, self.optimizer.rule(), self.init.distribution()
        )
