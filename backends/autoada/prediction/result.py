"""The result of a prediction: the accesses of one batch, and how they were found."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from autoada.prediction.source_location import source_line

AccessKind = Literal["rows", "full", "unpredictable"]
Tier = Literal["simulation", "early exit", "program"]


class Access(NamedTuple):
    """One read of a table.

    Attributes
    ----------
    table : str
        The parameter's qualified name; a tied parameter has its first name.
    ids : Tensor or None
        The int64 row ids that are read, duplicates and order kept; None unless `kind` is ``"rows"``.
    kind : {"rows", "full", "unpredictable"}
        ``"full"``: the whole table is read; ``"unpredictable"``: the rows depend on parameters.
    where : str
        ``file:line`` of the user's source that reads.
    """

    table: str
    ids: Tensor | None
    kind: AccessKind
    where: str


class Prediction(NamedTuple):
    """The accesses of one batch's forward pass, in order.

    Attributes
    ----------
    accesses : tuple of Access
        Accesses that were found.
    tier : {"simulation", "early exit", "program"}
        Method that found them.
    stopped : str or None
        Reason that the simulation stopped, with the place; the accesses found until then are valid.
    draws : bool
        Whether forward draws random numbers, so that rows may depend on them. They are the ones that the real
        forward will draw if nothing else draws before it.
    cause : BaseException or None
        The exception behind `stopped`, with its traceback.
    waits : bool
        Whether it stopped for a value that depends on parameters, which a real forward may give.
    dense_reads : tuple of (str, str)
        Large parameters that are no tables although rows of them are read, and ``file:line`` of a read.
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
