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
        When there are none, which would take for ever.
    """
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("batches is empty: give an iterable that can be gone through again and again")
