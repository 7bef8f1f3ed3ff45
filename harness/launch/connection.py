"""A wire and a thread, which listens, says that this side is alive, and notices when the other is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from adabench.harness.launch.framing import BEAT_SECONDS, PEER_SECONDS, Wire, WireLost
from adabench.harness.launch.messages import Alive, Message

__all__ = ["IDLE_SECONDS", "Line"]

IDLE_SECONDS = 60.0
"""Silence after which the other side counts as lost while no run is on: it may be busy making a plan."""


class Line:
    """One connection, as long as it lasts.

    Parameters
    ----------
    wire : Wire
        Whose first messages have been exchanged.
    heard : callable
        Told each message, by the thread that listens.
    lost : callable
        Told once, by that thread, why nothing more will come; not after `close`.
    """

    def __init__(self, wire: Wire, heard: Callable[[Message], None], lost: Callable[[str], None]) -> None:
        self._wire = wire
        self._heard = heard
        self._lost = lost
        self._closing = threading.Event()
        self.patience = IDLE_SECONDS
        """Seconds of silence after which the other side counts as lost."""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send it; if it cannot be sent, whoever is told of losses is told so."""
        try:
            self._wire.send(message)
        except WireLost:
            self._wire.interrupt()

    def close(self) -> None:
        """Send nothing more, and wait until the other side has read all, seconds at most."""
        self._closing.set()
        self._wire.finish()
        self._thread.join()
        self._wire.close()

    def _listen(self) -> None:
        next_beat = closed_at = time.monotonic()
        try:
            while True:
                message = self._wire.receive(BEAT_SECONDS)
                now = time.monotonic()
                if self._closing.is_set():
                    if now - closed_at > PEER_SECONDS:
                        return
                    continue
                closed_at = now
                if message is not None:
                    self._heard(message)
                if now >= next_beat:
                    next_beat = now + BEAT_SECONDS
                    self._wire.send(Alive())
                if now - self._wire.heard_at > self.patience:
                    raise WireLost(f"nothing was heard of it for {self.patience:g} s")
        except WireLost as error:
            if not self._closing.is_set():
                self._lost(str(error))
