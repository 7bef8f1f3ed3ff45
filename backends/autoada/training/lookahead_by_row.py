"""Lookahead of each row of a parameter, if a policy sets it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["RowLookahead"]


@dataclass(frozen=True)
class RowLookahead:
    """Ranges of rows with their lookaheads in batches."""

    ends: tuple[int, ...]
    """End of each range, in ascending order; the last range ends with the last row."""
    batches: tuple[int | None, ...]
    """Lookahead of each range in batches; 0 signals no intent. None leaves the lookahead to the loader. At
    least one of them is a number."""

    @property
    def most(self) -> int:
        """Largest lookahead of all ranges."""
        return max(ahead for ahead in self.batches if ahead is not None)

    @property
    def leaves_some(self) -> bool:
        """Whether the loader determines the lookahead of some rows."""
        return None in self.batches

    @cached_property
    def distances(self) -> tuple[int | None, ...]:
        """Distinct lookaheads of rows with intent."""
        return tuple(ahead for ahead in dict.fromkeys(self.batches) if ahead != 0)

    def select(self, rows: Tensor, ahead: int | None) -> Tensor:
        """Return which of some rows have a given lookahead."""
        ranges = torch.bucketize(rows, self._bounds, right=True)
        return self._batches[ranges] == (-1 if ahead is None else ahead)

    def text(self) -> str:
        """Short text that is equal on two nodes if and only if their lookaheads are equal."""
        if len(self.batches) == 1:
            return str(self.batches[0])
        different = sorted({"any" if ahead is None else str(ahead) for ahead in self.batches})
        digest = hashlib.sha256(repr((self.ends, self.batches)).encode()).hexdigest()
        return f"{', '.join(different)} by rows {digest[:12]}"

    @cached_property
    def _bounds(self) -> Tensor:
        return torch.tensor(self.ends[:-1], dtype=torch.int64, device="cpu")

    @cached_property
    def _batches(self) -> Tensor:
        """Lookahead of each range; -1 leaves it to the loader."""
        return torch.tensor(
            [-1 if ahead is None else ahead for ahead in self.batches], dtype=torch.int64, device="cpu"
        )
