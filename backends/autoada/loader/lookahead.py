"""Fixed or adaptive number of batches to fetch ahead."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

import adaps

FIRST = 2
MOST = 64
WINDOW = 8
"""Number of steps over which a width is judged."""
TOLERATED = 0.005
"""Maximum share of remote rows at which a width is wide enough."""
AS_GOOD = 1.25
"""Maximum ratio of remote rows at which a narrower width counts as good as the best one."""
PAUSE = 256
"""Number of steps between two searches; it doubles after each search without a better result."""

_log = logging.getLogger("autoada")


class Lookahead:
    """Number of batches to fetch ahead, which is fixed or adapts to the share of late rows.

    The rule of ``"auto"`` measures the share of remote rows among the rows that `WINDOW` consecutive steps
    read. Only steps with signalled intent count. If the share is more than `TOLERATED`, a search begins. It
    doubles the width and measures again when all batches of the old width are used up, until the share is
    tolerable or the width is `MOST`. Then it takes the narrowest width that is as good as the best
    (`AS_GOOD`), which is the first width where more lookahead does not help. After `PAUSE` steps, a share
    that is too large begins another search from the current width.
    """

    def __init__(self, given: int | Literal["auto"]) -> None:
        self.batches = FIRST if given == "auto" else given
        self.adapts = given == "auto"
        self._tried: dict[int, float] = {}
        self._settling = self.batches + 1
        self._steps = 0
        self._pulled = self._remote = 0.0
        self._pause = PAUSE
        self._resting = 0
        self._before: Mapping[str, float] = {}

    def begin_step(self, node: adaps.Node) -> None:
        """Begin a step."""
        self._before = node.stats()

    def end_step(self, node: adaps.Node, signalled: bool) -> None:
        """End a step. Without `signalled` intent, its rows cannot be local and do not count."""
        if not self.adapts or not signalled:
            return
        now = node.stats()
        remote, local, replica = (
            now[name] - self._before[name] for name in ("pulled_remote", "pulled_local", "pulled_replica")
        )
        self._learn(remote, remote + local + replica)

    def _learn(self, remote: float, pulled: float) -> None:
        if self._settling > 0:  # Intent for a batch of this step was signalled before the width changed.
            self._settling -= 1
            return
        self._resting = max(0, self._resting - 1)
        self._steps += 1
        self._remote += remote
        self._pulled += pulled
        if self._steps < WINDOW:
            return
        share = self._remote / max(1.0, self._pulled)
        self._steps = 0
        self._pulled = self._remote = 0.0
        if self._resting == 0:
            self._judge(share)

    def _judge(self, share: float) -> None:
        if not self._tried and share <= TOLERATED:
            return  # No search is active, and none is needed.
        self._tried[self.batches] = share
        if share > TOLERATED and self.batches < MOST:
            self._set(min(MOST, max(1, 2 * self.batches)))
            return
        start = min(self._tried)
        best = min(self._tried.values())
        self._set(
            min(width for width, found in self._tried.items() if found <= max(TOLERATED, AS_GOOD * best))
        )
        self._pause = 2 * self._pause if self.batches == start else PAUSE
        self._resting = self._pause
        self._tried.clear()
        _log.info("lookahead: %d batches", self.batches)

    def _set(self, batches: int) -> None:
        self._settling = max(batches, self.batches) + 1
        self.batches = batches
