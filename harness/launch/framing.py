"""Messages as authenticated frames: both sides prove in each frame that they have the job's secret.

A frame has the length of its content, an authentication code (HMAC-SHA256, RFC 2104) and the content, a
message as JSON. The code's key is derived from the secret and a random number from either side. The code
covers the direction and the number of the frame, so that no frame can be left out, repeated or sent back.
Nothing is encrypted.
"""

import contextlib
import hmac
import secrets
import select
import socket
import struct
import threading
import time

import msgspec

from adabench.harness.launch.messages import Alive, Message

PEER_SECONDS = 5.0
"""Silence after which the other side counts as lost during a run: as for nodes, by default."""

_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_NONCE = 32
_HEAD = struct.Struct(">I32s")
_COUNT = struct.Struct(">?Q")
_FIRST = 1 << 16
_LONGEST = 1 << 28
"""Maximum bytes of a message; before the first one was authenticated, `_FIRST`."""


class ConnectionLost(ConnectionError):
    """Error if the other side is gone, is silent, or does not have the secret."""


class FramedSocket:
    """One authenticated connection. One thread receives messages; any thread may send.

    Parameters
    ----------
    connection : socket
        Connected socket, which this object owns.
    secret : str
        Secret of the job.
    coordinates : bool
        Whether this is the coordinator's side.

    Attributes
    ----------
    heard_at : float
        Arrival of the last message, in seconds of `time.monotonic`.

    Raises
    ------
    ConnectionLost
        If the other side does not answer.
    """

    def __init__(self, connection: socket.socket, secret: str, coordinates: bool) -> None:
        self._connection = connection
        self._coordinates = coordinates
        self._lock = threading.Lock()
        self._unread = bytearray()
        self._sent = self._received = 0
        own, other = secrets.token_bytes(_NONCE), b""
        try:
            connection.settimeout(PEER_SECONDS)
            connection.sendall(own)
            while len(other) < _NONCE:
                part = connection.recv(_NONCE - len(other))
                if not part:
                    raise ConnectionResetError("the connection has ended")
                other += part
        except OSError as error:
            connection.close()
            raise ConnectionLost(f"the connection was lost before it was used ({error})") from error
        nonces = own + other if coordinates else other + own
        self._key = hmac.digest(secret.encode(), b"adabench hosts" + nonces, "sha256")
        self.heard_at = time.monotonic()

    def send(self, message: Message) -> None:
        """Send a message; blocks while the other side does not read, seconds at most.

        Raises
        ------
        ConnectionLost
            If it does not read.
        """
        content = msgspec.json.encode(message)
        assert len(content) <= _LONGEST
        with self._lock:
            frame = _HEAD.pack(len(content), self._code(self._coordinates, self._sent, content)) + content
            self._sent += 1
            try:
                self._connection.sendall(frame)
            except OSError as error:
                raise ConnectionLost(f"nothing can be sent: {error}") from error

    def receive(self, seconds: float) -> Message | None:
        """The next message other than `Alive`, or None if none came within `seconds`.

        Raises
        ------
        ConnectionLost
            If the connection has ended, or anything but a message of the other side came.
        """
        deadline = time.monotonic() + seconds
        while True:
            message = self._next()
            if message is not None and not isinstance(message, Alive):
                return message
            if message is not None:
                continue
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._connection], [], [], left)[0]:
                return None
            try:
                part = self._connection.recv(1 << 20)
            except OSError as error:
                raise ConnectionLost(f"the connection was lost: {error}") from error
            if not part:
                raise ConnectionLost("the connection has ended")
            self._unread += part

    def shutdown(self, how: int) -> None:
        """`socket.SHUT_WR` ends this side's messages; `socket.SHUT_RDWR` also ends a blocked `receive`."""
        with contextlib.suppress(OSError):  # the other side was first
            self._connection.shutdown(how)

    def close(self) -> None:
        """Release the socket, once no thread receives any more."""
        self._connection.close()

    def _next(self) -> Message | None:
        if len(self._unread) < _HEAD.size:
            return None
        size, code = _HEAD.unpack_from(self._unread)
        if size > (_LONGEST if self._received else _FIRST):
            raise ConnectionLost(
                "the received bytes are no message: is it the connection of another program?"
            )
        end = _HEAD.size + size
        if len(self._unread) < end:
            return None
        content = bytes(self._unread[_HEAD.size : end])
        del self._unread[:end]
        if not hmac.compare_digest(code, self._code(not self._coordinates, self._received, content)):
            raise ConnectionLost("a message was made with another secret, or was changed on the network")
        self._received += 1
        self.heard_at = time.monotonic()
        try:
            return _DECODER.decode(content)
        except msgspec.MsgspecError as error:
            raise ConnectionLost(
                f"a message cannot be read: is its sender of another version? {error}"
            ) from error

    def _code(self, from_coordinator: bool, number: int, content: bytes) -> bytes:
        return hmac.digest(self._key, _COUNT.pack(from_coordinator, number) + content, "sha256")
