"""What a model has to be managed: its parameters, and how often their rows are accessed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from adaps import _argument_checks
from adaps.policy.validation import PolicyError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Catalogue", "Parameter"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a model.

    Attributes
    ----------
    name : str
        Qualified, as ``model.named_parameters()`` has it.
    rows, length : int
        Rows, and floats in each.
    kind : "dense" or "table"
        Whether every step reads all of it, or some rows.
    """

    name: str
    rows: int
    length: int
    kind: Literal["dense", "table"]

    @property
    def bytes(self) -> int:
        """Of its values, as float32."""
        return 4 * self.rows * self.length


@dataclass(frozen=True)
class Catalogue:
    """The parameters of a model in its order.

    Attributes
    ----------
    parameters : sequence of Parameter
        With names of their own.
    accesses : dict of str to int64 array, optional
        Of parameters for which they are known: for each row, by how many of `batches` it is read.
    batches : int
        How many batches of all workers were looked at.
    homes : dict of str to int32 array, optional
        Of parameters for which it is known: for each row, the node that reads it in most batches, or -1.
    """

    parameters: Sequence[Parameter]
    accesses: Mapping[str, np.ndarray[Any, np.dtype[np.int64]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    batches: int = field(default=0, compare=False)
    homes: Mapping[str, np.ndarray[Any, np.dtype[np.int32]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(self.parameters))
        for name, counts in self.accesses.items():
            rows = self.parameter(name).rows
            if counts.shape != (rows,):
                raise PolicyError(f"access counts of {name} are of {counts.size} rows; it has {rows}")
        for name, homes in self.homes.items():
            rows = self.parameter(name).rows
            if homes.shape != (rows,) or name not in self.accesses:
                raise PolicyError(
                    f"homes of {name} are of {homes.size} rows; it has {rows}, and needs access counts, too"
                )

    @classmethod
    def of_shapes(cls, shapes: Iterable[tuple[str, Sequence[int]]], tables: Iterable[str]) -> Catalogue:
        """The catalogue of parameters with these shapes.

        Parameters
        ----------
        shapes : iterable of (str, sequence of int)
            Qualified names, and the shape of each. Dimensions behind the first make up a row.
        tables : iterable of str
            Those that are read by rows.

        Raises
        ------
        PolicyError
            If a table is none of them.
        """
        known = dict(shapes)
        by_rows = set(tables)
        for table in sorted(by_rows - known.keys()):
            hint = _argument_checks.nearest(table, known)
            raise PolicyError(f"there is no parameter {table!r}{hint}")
        parameters = []
        for name, shape in known.items():
            length = 1
            for size in shape[1:]:
                length *= max(1, int(size))
            rows = max(1, int(shape[0])) if shape else 1
            parameters.append(Parameter(name, rows, length, "table" if name in by_rows else "dense"))
        return cls(parameters)

    @property
    def sha256(self) -> str:
        """``sha256:…`` of names, rows, lengths and kinds: equal if and only if these are."""
        listed = [[one.name, one.rows, one.length, one.kind] for one in self.parameters]
        text = json.dumps(listed, ensure_ascii=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def parameter(self, name: str) -> Parameter:
        """Find a parameter by its name.

        Parameters
        ----------
        name : str
            Qualified.

        Raises
        ------
        PolicyError
            If there is none, with the nearest name that there is.
        """
        for one in self.parameters:
            if one.name == name:
                return one
        names = [one.name for one in self.parameters]
        raise PolicyError(
            f"unknown parameter {name!r}{_argument_checks.nearest(name, names)}; there are {', '.join(names)}"
        )
