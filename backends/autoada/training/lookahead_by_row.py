"""How many batches ahead each row of a parameter is announced, where a policy says it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["RowLookahead"]


@dataclass(frozen=True)
class RowLookahead:
    """Ranges of rows by how many batches ahead they are announced.

    Attributes
    ----------
    ends : tuple of int
        Where each range ends, ascending, the last one with the last row.
    batches : tuple of (int or None)
        Of each range: how many, or none at all with 0. None leaves it to who signals intent. At least one of
        them is a number.
    """

    ends: tuple[int, ...]
    batches: tuple[int | None, ...]

    @property
    def most(self) -> int:
        """The greatest number of batches that is given."""
        return max(ahead for ahead in self.batches if ahead is not None)

    @property
    def leaves_some(self) -> bool:
        """Whether some rows are left to who signals intent."""
        return None in self.batches

    @cached_property
    def distances(self) -> tuple[int | None, ...]:
        """The different numbers of batches of those rows that are announced."""
        return tuple(ahead for ahead in dict.fromkeys(self.batches) if ahead != 0)

    def select(self, rows: Tensor, ahead: int | None) -> Tensor:
        """Which of some rows are announced so many batches ahead.

        Parameters
        ----------
        rows : Tensor
            Row numbers, int64, one-dimensional, on the CPU.
        ahead : int or None
            One of `distances`.

        Returns
        -------
        Tensor
            A bool for each row.
        """
        ranges = torch.bucketize(rows, self._bounds, right=True)
        return self._numbers[ranges] == self.distances.index(ahead)

    def text(self) -> str:
        """In a few words, which are the same on two nodes if and only if their rows are announced alike."""
        if len(self.batches) == 1:
            return str(self.batches[0])
        different = sorted({"any" if ahead is None else str(ahead) for ahead in self.batches})
        digest = hashlib.sha256(repr((self.ends, self.batches)).encode()).hexdigest()
        return f"{', '.join(different)} by rows {digest[:12]}"

    @cached_property
    def _bounds(self) -> Tensor:
        return torch.tensor(self.ends[:-1], dtype=torch.int64)

    @cached_property
    def _numbers(self) -> Tensor:
        """Of each range, which of `distances` it is, or -1."""
        places: dict[int | None, int] = {ahead: number for number, ahead in enumerate(self.distances)}
        return torch.tensor([places.get(ahead, -1) for ahead in self.batches], dtype=torch.int64)
