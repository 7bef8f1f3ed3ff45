"""How many batches to fetch ahead."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Literal

import adaps

FIRST = 2
MOST = 64
QUIET_STEPS = 16
"""Steps in a row without a remote read after which the lookahead is wide enough."""

_log = logging.getLogger("autoada")


class Lookahead:
    """A fixed number of batches, or one that widens until rows arrive before they are needed.

    Attributes
    ----------
    batches : int
        How many batches to fetch ahead now.
    """

    def __init__(self, given: int | Literal["auto"]) -> None:
        self.batches = FIRST if given == "auto" else given
        self._searching = given == "auto"
        self._quiet = 0
        self._steps_at_width = 0

    @contextlib.contextmanager
    def watching(self, node: adaps.Node) -> Iterator[None]:
        """Surrounds a training step; counts the rows that were not local in it."""
        if not self._searching:
            yield
            return
        before = node.stats()["pulled_remote"]
        yield
        self._learn(node.stats()["pulled_remote"] > before)

    def _learn(self, remote: bool) -> None:
        self._steps_at_width += 1
        if self._steps_at_width <= self.batches + 1:
            return  # batches of this step were announced before the lookahead was widened
        self._quiet = 0 if remote else self._quiet + 1
        if self._quiet >= QUIET_STEPS or (remote and self.batches >= MOST):
            self._searching = False
            _log.info("lookahead: %d batches", self.batches)
        elif remote:
            self.batches = min(MOST, 2 * self.batches)
            self._steps_at_width = 0
