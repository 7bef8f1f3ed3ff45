"""Progress of a node while it trains, which the harness's process turns into event files.

A node writes its loss and its counters in the first step, at most once per second from then on, and after
each epoch, which is outside of the measured time. Every other step only reads the clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec
from torch import Tensor

from adabench.harness.run.spec import exchange_file

WATCHED = ("pulled_local", "pulled_replica", "pulled_remote", "bytes_sent", "blocked_micros")
"""Counters that entries contain, if a backend has them."""

_SECONDS = 1.0
_KEPT = 64


class ProgressEntry(msgspec.Struct, kw_only=True, frozen=True):
    """State of a node at a moment.

    Attributes
    ----------
    number : int
        Number of the entry, from 0.
    step : int
        Number of steps of the node's first worker so far, in all epochs. A system with its own loop reports
        no steps; the value is then the number of epochs.
    epoch : int
        Number of the epoch, from 1.
    counters : dict of str to float
        Current values of the counters in `WATCHED`, counted in training.
    loss : float or None
        Loss of the first worker in this step.
    quality : dict of str to float
        Metrics of the node that evaluates, after an epoch. Metrics of the validation split have the prefix
        ``valid_``; the others are of the test split.
    """

    number: int
    step: int
    epoch: int
    counters: dict[str, float] = {}
    loss: float | None = None
    quality: dict[str, float] = {}


class ProgressLog:
    """Writes a node's last entries to a file; its first worker calls it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = exchange_file(folder, "progress", rank)
        # A reader that reads once per second still finds entries that it missed within the last minute.
        self._last: deque[ProgressEntry] = deque(maxlen=_KEPT)
        self._number = 0
        self._step = 0
        self._due = 0.0

    def due(self) -> bool:
        """Count a step; returns whether it is time for an entry."""
        self._step += 1
        return time.monotonic() >= self._due

    def write(
        self,
        epoch: int,
        counters: Mapping[str, float],
        loss: Tensor | None = None,
        quality: Mapping[str, float] | None = None,
    ) -> None:
        """Add an entry."""
        self._last.append(
            ProgressEntry(
                number=self._number,
                step=self._step or epoch,
                epoch=epoch,
                counters={name: counters[name] for name in WATCHED if name in counters},
                loss=None if loss is None else float(loss.detach()),
                quality=dict(quality or {}),
            )
        )
        self._number += 1
        # A reader sees a whole file or none; unlike a record it need not outlast a crash.
        temporary = self._file.with_name(f".{self._file.name}")
        temporary.write_bytes(msgspec.json.encode(list(self._last)))
        temporary.replace(self._file)
        self._due = time.monotonic() + _SECONDS
