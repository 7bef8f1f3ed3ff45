"""Messages between the harness's processes on several hosts, which prove that they know the job's secret.

A frame is the length of its content, a code that authenticates it (HMAC-SHA256, RFC 2104) and the content, a
message as JSON. The code's key is made of the secret and of a random number from either side; it covers the
direction and the number of the frame, so none can be left out, repeated or sent back. Nothing is encrypted.
"""

from __future__ import annotations

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

__all__ = ["BEAT_SECONDS", "PEER_SECONDS", "Wire", "WireLost"]

PEER_SECONDS = 5.0
"""Silence after which the other side counts as lost while a run is on: as for nodes, by default."""
BEAT_SECONDS = 1.0

_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_NONCE = 32
_HEAD = struct.Struct(">I32s")
_COUNT = struct.Struct(">?Q")
_FIRST = 1 << 16
_LONGEST = 1 << 28
"""Bytes of a message; before the first one was authenticated, `_FIRST`."""


class WireLost(ConnectionError):
    """The other side is gone, silent, or not who it has to be; one sentence."""


class Wire:
    """One connection; messages are received by one thread, and sent by any.

    Parameters
    ----------
    connection : socket
        Connected; this owns it.
    secret : str
        The job's.
    leads : bool
        Whether this is the leader's side.
    """

    def __init__(self, connection: socket.socket, secret: str, leads: bool) -> None:
        self._connection = connection
        self._leads = leads
        self._lock = threading.Lock()
        self._got = bytearray()
        self._sent = self._received = 0
        connection.settimeout(PEER_SECONDS)
        own = secrets.token_bytes(_NONCE)
        try:
            connection.sendall(own)
            other = self._exactly(_NONCE)
        except OSError as error:
            connection.close()
            raise WireLost(f"the connection was lost before it was used ({error})") from error
        both = own + other if leads else other + own
        self._key = hmac.digest(secret.encode(), b"adabench hosts" + both, "sha256")
        self.heard_at = time.monotonic()
        """When the last message came, in seconds of `time.monotonic`."""

    def send(self, message: Message) -> None:
        """Blocks while the other side does not read, seconds at most.

        Raises
        ------
        WireLost
            If it does not.
        """
        content = msgspec.json.encode(message)
        assert len(content) <= _LONGEST
        with self._lock:
            frame = _HEAD.pack(len(content), self._code(self._leads, self._sent, content)) + content
            self._sent += 1
            try:
                self._connection.sendall(frame)
            except OSError as error:
                raise WireLost(f"nothing can be sent: {error}") from error

    def receive(self, seconds: float) -> Message | None:
        """The next message but `Alive`, or None if none came within `seconds`.

        Raises
        ------
        WireLost
            If the connection has ended, or something else than a message of the other side came.
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
                raise WireLost(f"the connection was lost: {error}") from error
            if not part:
                raise WireLost("the connection has ended")
            self._got += part

    def finish(self) -> None:
        """Say nothing more; the other side may."""
        self._shut(socket.SHUT_WR)

    def interrupt(self) -> None:
        """Let the thread that receives find the connection lost."""
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """Once nobody receives any more."""
        self._connection.close()

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):  # the other side was first
            self._connection.shutdown(how)

    def _next(self) -> Message | None:
        if len(self._got) < _HEAD.size:
            return None
        size, code = _HEAD.unpack_from(self._got)
        if size > (_LONGEST if self._received else _FIRST):
            raise WireLost("what came is no message: is it another program's connection?")
        if len(self._got) < _HEAD.size + size:
            return None
        content = bytes(self._got[_HEAD.size : _HEAD.size + size])
        del self._got[: _HEAD.size + size]
        if not hmac.compare_digest(code, self._code(not self._leads, self._received, content)):
            raise WireLost("a message was made with another secret, or changed on its way")
        self._received += 1
        self.heard_at = time.monotonic()
        try:
            return _DECODER.decode(content)
        except msgspec.MsgspecError as error:
            raise WireLost(f"a message is not understood, is it of another version? {error}") from error

    def _code(self, from_leader: bool, number: int, content: bytes) -> bytes:
        return hmac.digest(self._key, _COUNT.pack(from_leader, number) + content, "sha256")

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            part = self._connection.recv(size - len(got))
            if not part:
                raise WireLost("the connection has ended")
            got += part
        return got
