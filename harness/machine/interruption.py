"""Ctrl-C and SIGTERM as a flag that is checked at safe moments."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interruption:
    """Remembers Ctrl-C or SIGTERM instead of raising in the middle of a write; a context manager.

    Parameters
    ----------
    *others : int
        Further signals with the same effect.
    """

    def __init__(self, *others: int) -> None:
        self.requested = False
        self._numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *others)
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in self._numbers:
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self.requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
