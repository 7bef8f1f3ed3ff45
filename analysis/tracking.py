"""Progress of long computations, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

__all__ = ["tracked"]

T = TypeVar("T")


def tracked(items: Sequence[T], doing: str) -> Iterable[T]:
    """Yield the items, with a progress bar on standard error.

    Parameters
    ----------
    items : sequence
        Items to yield.
    doing : str
        Text before the bar.
    """
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, doing, console=console, transient=True, disable=not console.is_terminal)
