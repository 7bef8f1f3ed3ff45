"""A prefetch iterator, as in AdaPM's applications: a queue, and a callback that signals intent."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from adabench.backends.strategies._server_session import OnServer
from adabench.backends.strategies.manual import ManualSession


class PrefetchIterator:
    """Keeps `length` batches ready. Calls ``on_fetch(batch, steps)`` with the steps until its use."""

    def __init__(self, batches: Iterable[Any], length: int, on_fetch: Callable[[Any, int], None]) -> None:
        self._batches = iter(batches)
        self._length = length
        self._on_fetch = on_fetch
        self._queue: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while len(self._queue) <= self._length and (batch := next(self._batches, None)) is not None:
            self._on_fetch(batch, len(self._queue))
            self._queue.append(batch)
        if not self._queue:
            raise StopIteration
        return self._queue.popleft()


class PrefetchSession(ManualSession):
    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        def signal(batch: Any, steps: int) -> None:
            self.announce(batch, self.server.current_clock + steps)

        return iter(self.drawn(self.from_first_rows(PrefetchIterator(loader, self.lookahead, signal))))


class Prefetch(OnServer):
    name = "prefetch"
    session = PrefetchSession


BACKEND = Prefetch
