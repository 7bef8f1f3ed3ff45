"""Result of a prediction: the accesses of one batch, and the method that found them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from autoada.prediction.source_location import source_line

AccessKind = Literal["rows", "full", "unpredictable"]
Tier = Literal["simulation", "program"]


class Access(NamedTuple):
    """One read of a table.

    Attributes
    ----------
    table : str
        Qualified name of the parameter. A tied parameter has its first name.
    ids : Tensor or None
        Int64 row ids that are read, with duplicates and in order; None unless `kind` is ``"rows"``.
    kind : {"rows", "full", "unpredictable"}
        Kind of the read: ``"rows"`` for known rows, ``"full"`` for the whole table, ``"unpredictable"`` for
        rows that depend on parameters.
    where : str
        ``file:line`` of the read in the user's source.
    """

    table: str
    ids: Tensor | None
    kind: AccessKind
    where: str


class Prediction(NamedTuple):
    """Accesses of one batch's forward pass, in order.

    Attributes
    ----------
    accesses : tuple of Access
        Accesses that were found.
    tier : {"simulation", "program"}
        Method that found them.
    stopped : str or None
        Reason why the simulation stopped, with the place. Accesses before this place are valid.
    draws : bool
        Whether forward draws random numbers, so that rows may depend on them. The real forward draws the same
        numbers if nothing else draws before it.
    cause : BaseException or None
        Exception behind `stopped`, with its traceback.
    waits : bool
        Whether the simulation stopped at a value that depends on parameters, which a real forward may give.
    dense_reads : tuple of (str, str)
        Large parameters that are not tables although rows of them are read, with ``file:line`` of a read.
    """

    accesses: tuple[Access, ...]
    tier: Tier = "simulation"
    stopped: str | None = None
    draws: bool = False
    cause: BaseException | None = None
    waits: bool = False
    dense_reads: tuple[tuple[str, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every access was found and every row is known."""
        return self.stopped is None and all(access.kind != "unpredictable" for access in self.accesses)

    def __str__(self) -> str:
        lines = [f"predicted by {self.tier}" + (f"; stopped: {self.stopped}" if self.stopped else "")]
        for access in self.accesses:
            rows = f"{access.ids.numel()} rows" if access.ids is not None else access.kind
            lines.append(f"  {access.table}: {rows} at {access.where}{source_line(access.where)}")
        return "\n".join(lines)
