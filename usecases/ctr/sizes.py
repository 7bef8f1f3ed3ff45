"""Number of rows of each split."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from adabench.usecases.interface import DataError


class Sizes(NamedTuple):
    """Number of rows of each split. The splits follow one another."""

    train: int
    valid: int
    test: int

    @classmethod
    def sevenths(cls, rows: int, what: str) -> Sizes:
        """Return sizes: the last seventh for tests, the one before for validation, the rest for training."""
        seventh = rows // 7
        if seventh == 0:
            raise DataError(f"{what} has {rows} rows: it must have at least 7 to be split")
        return cls(rows - 2 * seventh, seventh, seventh)

    def slices(self) -> dict[str, slice]:
        """Return the range of each split's rows."""
        ends = accumulate(self)
        named = zip(self._fields, self, ends, strict=True)
        return {name: slice(end - size, end) for name, size, end in named}
