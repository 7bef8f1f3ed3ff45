"""Hand-written intent: the loop signals the keys of a batch some steps ahead, and advances the clock."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from adabench.backends.strategies._server_session import OnServer, ServerSession


class ManualSession(ServerSession):
    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(self.drawn(self.from_first_rows(self._announced(loader))))

    def _announced(self, loader: Iterable[Any]) -> Iterator[Any]:
        ahead: deque[Any] = deque()
        for batch in loader:
            self.announce(batch, self.server.current_clock + len(ahead))
            ahead.append(batch)
            if len(ahead) > self.lookahead:
                yield ahead.popleft()
        while ahead:
            yield ahead.popleft()

    def step(self, loss: Tensor) -> None:
        super().step(loss)
        self.advance()


class Manual(OnServer):
    name = "manual"
    session = ManualSession


BACKEND = Manual
