"""The parameters of a model, and the number of accesses to their rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
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
        Qualified name, as in ``model.named_parameters()``.
    rows, length : int
        Number of rows, and number of floats of each.
    kind : "dense" or "table"
        Kind: "dense" if every step reads the whole parameter, "table" if a step reads some rows.
    has_ids : bool
        Whether rows are assigned to ids at their first use, so that rules can set `evict` and `admit`.
    """

    name: str
    rows: int
    length: int
    kind: Literal["dense", "table"]
    has_ids: bool = False

    @property
    def bytes(self) -> int:
        """Size of its values in bytes, as float32."""
        return 4 * self.rows * self.length


@dataclass(frozen=True)
class Catalogue:
    """The parameters of a model, in its order.

    Attributes
    ----------
    parameters : sequence of Parameter
        Parameters with unique names.
    accesses : dict of str to int64 array, optional
        Number of the `batches` that read each row, for parameters with known accesses.
    batches : int
        Number of counted batches, of all workers.
    homes : dict of str to int32 array, optional
        Node that reads each row in most batches, or -1, for parameters with known readers.
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
    def of_shapes(
        cls, shapes: Iterable[tuple[str, Sequence[int]]], tables: Iterable[str], with_ids: Container[str] = ()
    ) -> Catalogue:
        """Return the catalogue of parameters with these shapes.

        Parameters
        ----------
        shapes : iterable of (str, sequence of int)
            Qualified name and shape of each parameter. The dimensions after the first one form a row.
        tables : iterable of str
            Names of the parameters that are read by rows.
        with_ids : container of str
            Names of the tables whose rows are assigned to ids.

        Raises
        ------
        PolicyError
            If a table is not among the parameters.
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
            kind: Literal["dense", "table"] = "table" if name in by_rows else "dense"
            parameters.append(Parameter(name, rows, length, kind, name in with_ids))
        return cls(parameters)

    @property
    def sha256(self) -> str:
        """``sha256:…`` of names, numbers of rows, lengths and kinds; equal only if these are equal."""
        listed = [[one.name, one.rows, one.length, one.kind] for one in self.parameters]
        text = json.dumps(listed, ensure_ascii=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def parameter(self, name: str) -> Parameter:
        """Return a parameter by its name.

        Parameters
        ----------
        name : str
            Qualified name of the parameter.

        Raises
        ------
        PolicyError
            If the parameter does not exist. The error names the most similar parameter.
        """
        for one in self.parameters:
            if one.name == name:
                return one
        names = [one.name for one in self.parameters]
        raise PolicyError(
            f"unknown parameter {name!r}{_argument_checks.nearest(name, names)}; there are {', '.join(names)}"
        )
