"""Batches over and over again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["endless"]

Batch = TypeVar("Batch")


def endless(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Go through `batches` again and again.

    Raises
    ------
    ValueError
        If there are no batches, as the loop would never end.
    """
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("batches is empty: give an iterable that can be gone through again and again")
