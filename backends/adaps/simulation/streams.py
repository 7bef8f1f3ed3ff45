"""The rows that simulated workers access in each step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adaps import _argument_checks
from adaps.tables import Table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Keys = npt.NDArray[np.int64]

__all__ = ["Stream", "keys_of"]


@dataclass(frozen=True)
class Stream:
    """The accesses of one worker.

    Parameters
    ----------
    steps : sequence of mapping of str to array
        Rows of each table that the worker reads and writes, by the table's name, for each step. A row that
        occurs twice in a step is accessed once.
    placed : mapping of str to array
        Rows that are on the worker's node at the start.
    """

    steps: Sequence[Mapping[str, npt.ArrayLike]]
    placed: Mapping[str, npt.ArrayLike] = field(default_factory=dict)


def keys_of(
    number: int, stream: Stream, tables: Sequence[Table], dense: Sequence[str]
) -> tuple[Keys, Keys, Keys]:
    """Return a worker's stream for the core: placed keys, keys of all steps, and each step's end."""
    import numpy as np  # imported here, so that importing the package is fast

    ends = itertools.accumulate(table.rows for table in tables)
    tables_at = {table.name: (end - table.rows, table.rows) for table, end in zip(tables, ends, strict=True)}

    def keys(accessed: Mapping[str, npt.ArrayLike]) -> Keys:
        found = []
        for name in accessed:
            if name in dense:
                raise ValueError(
                    f"the stream of worker {number} names rows of {name!r}, which is dense: leave it out"
                )
            _argument_checks.one_of(f"table in the stream of worker {number}", name, tables_at)
            first_key, count = tables_at[name]
            rows = _argument_checks.int64_array(f"{name!r} in the stream of worker {number}", accessed[name])
            rows = np.sort(rows, axis=None)
            rows = rows[np.diff(rows, prepend=-(2**62)) != 0]  # takes a third of np.unique's time
            if rows.size and not 0 <= rows[0] <= rows[-1] < count:
                wrong = rows[0] if rows[0] < 0 else rows[-1]
                raise ValueError(
                    f"the stream of worker {number} names row {wrong} of {name!r}, which has {count}"
                )
            found.append((first_key, rows + first_key))
        ordered = [rows for _, rows in sorted(found, key=lambda one: one[0])]
        return np.concatenate(ordered) if ordered else np.empty(0, dtype=np.int64)

    steps = [keys(step) for step in stream.steps]
    together = np.concatenate(steps) if steps else np.empty(0, dtype=np.int64)
    return keys(stream.placed), together, np.cumsum([len(step) for step in steps], dtype=np.int64)
