"""A connection with heartbeats: a thread receives messages, and notices when the other side is lost."""

import socket
import threading
import time
from abc import ABC, abstractmethod

from adabench.harness.launch.framing import PEER_SECONDS, ConnectionLost, FramedSocket
from adabench.harness.launch.messages import Alive, Message

IDLE_SECONDS = 60.0
"""Silence after which the other side counts as lost between runs: it may be busy making a plan."""
_BEAT_SECONDS = 1.0


class Connection(ABC):
    """One side of a connection between the coordinator and an agent.

    Attributes
    ----------
    patience : float
        Seconds of silence after which the other side counts as lost.
    changed : threading.Condition
        Condition that is notified after each message, and when the connection is lost.
    lost : str or None
        The reason why no message can arrive any more, unless this side has closed the connection.
    """

    def __init__(self, framed: FramedSocket) -> None:
        self.patience = IDLE_SECONDS
        self.changed = threading.Condition()
        self.lost: str | None = None
        self._framed = framed
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    @abstractmethod
    def receive(self, message: Message) -> None:
        """Take a message; called by the thread that listens, which holds `changed`."""

    def send(self, message: Message) -> None:
        """Send a message; if that is impossible, the connection is lost."""
        try:
            self._framed.send(message)
        except ConnectionLost:
            self._framed.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        """Begin to receive messages."""
        self._thread.start()

    def close(self) -> None:
        """Send nothing more, and wait until the other side has read all, seconds at most."""
        self._closing.set()
        self._framed.shutdown(socket.SHUT_WR)
        self._thread.join()
        self._framed.close()

    def _listen(self) -> None:
        next_beat = closed_at = time.monotonic()
        try:
            while True:
                message = self._framed.receive(_BEAT_SECONDS)
                now = time.monotonic()
                if self._closing.is_set():
                    if now - closed_at > PEER_SECONDS:
                        return
                    continue
                closed_at = now
                if message is not None:
                    with self.changed:
                        self.receive(message)
                        self.changed.notify_all()
                if now >= next_beat:
                    next_beat = now + _BEAT_SECONDS
                    self._framed.send(Alive())
                if now - self._framed.heard_at > self.patience:
                    raise ConnectionLost(f"no message arrived from it for {self.patience:g} s")
        except ConnectionLost as error:
            if not self._closing.is_set():
                with self.changed:
                    self.lost = str(error)
                    self.changed.notify_all()
