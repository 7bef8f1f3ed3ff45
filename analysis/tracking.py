"""Progress of long computations, on a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeVar

T = TypeVar("T")


def tracked(items: Sequence[T], doing: str) -> Iterable[T]:
    """Yield the items, with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, doing, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def working(doing: str) -> Iterator[None]:
    """Show a spinner while a computation runs whose progress cannot be measured, if stderr is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    # The animation is slow, so that it takes no time from measurements of this machine.
    with console.status(doing, refresh_per_second=4) if console.is_terminal else nullcontext():
        yield
