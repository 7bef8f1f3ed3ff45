"""Contexts of a single worker per process, to open sessions of backends in tests."""

from collections.abc import Callable
from typing import Any

from adabench.backends.interface import WorkerContext


class PerProcess:
    """Makes the object that all workers of a process share, and closes it."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self, make: Callable[[], Any]) -> Any:
        if not self.made:
            self.made.append(make())
        return self.made[0]

    def close(self) -> None:
        for one in self.made:
            one.close()


def worker_context(
    per_process: Callable[[Callable[[], Any]], Any], rank: int = 0, world_size: int = 1, **fields: Any
) -> WorkerContext:
    """The only worker of a process; `fields` replace fields of `WorkerContext`."""
    fields = {"worker": 0, "workers": 1, "seed": 1, "network": "loopback", **fields}
    return WorkerContext(rank, world_size, per_process=per_process, **fields)
