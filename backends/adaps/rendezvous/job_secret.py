"""The job's secret, which every node proves to have: set by the user, or exchanged within one host."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import struct
import time
from collections.abc import Mapping
from types import TracebackType

from adaps.errors import RendezvousError

__all__ = ["HOW_TO_SHARE", "Handover", "secret_in_environment", "take_secret"]

HOW_TO_SHARE = (
    "write one with `(umask 077; head -c 32 /dev/urandom | base64 > adaps-secret)`, copy the file to every "
    "host with mode 600, and set ADAPS_SECRET_FILE to its path on each"
)
"""The action that lets nodes of several hosts authenticate each other."""

_SHORTEST, _LONGEST = 16, 4096
_PREFIX = "adaps-secret-"
_HANDED = 64
"""Number of hexadecimal digits of a generated secret."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
_PATIENCE = 0.02


def secret_in_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the secret in ADAPS_SECRET, or in the file that ADAPS_SECRET_FILE names; None without either.

    Raises
    ------
    RendezvousError
        If both are set, the file belongs to another user or can be read by other users, or the secret is too
        short.
    """
    secret, path = environment.get("ADAPS_SECRET"), environment.get("ADAPS_SECRET_FILE")
    if secret is not None and path is not None:
        raise RendezvousError("ADAPS_SECRET and ADAPS_SECRET_FILE are both set; set only one of them")
    if path is not None:
        return _checked(_read(path), f"the file {path!r} of ADAPS_SECRET_FILE")
    return None if secret is None else _checked(secret, "ADAPS_SECRET")


class Handover:
    """Creates a secret and gives it to processes of this user on this host, during the context.

    Processes request it at a socket in the abstract namespace of Unix-domain sockets, where the kernel
    reports their user. This needs no setup, leaves no file, and excludes other hosts and users.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_hex(_HANDED // 2)
        self.name = _PREFIX + secrets.token_hex(16)
        """Name for `take_secret`. It is not secret."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind("\0" + self.name)
        self._listener.listen(4096)  # the kernel reduces it to its own limit

    def __enter__(self) -> Handover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()

    def serve(self) -> None:
        """Answer the pending requests, at most a thousand; does not block."""
        for _ in range(1000):
            try:
                asking, _ = self._listener.accept()
            except BlockingIOError:
                return
            with asking:
                if _user_of(asking) == os.geteuid():
                    # The requesting process has closed the connection. It may request again.
                    with contextlib.suppress(ConnectionError):
                        asking.send(self.secret.encode(), socket.MSG_DONTWAIT)


def take_secret(name: str, deadline: float) -> str:
    """Request the secret from the other process's `Handover`. Blocks until the deadline at most.

    Raises
    ------
    RendezvousError
        If no process of this user provides the secret.
    """
    if not name.startswith(_PREFIX):
        raise RendezvousError(f"the rendezvous store names {name!r} as the socket for the job's secret")
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(max(deadline - time.monotonic(), 0.1))
                asking.connect("\0" + name)
                user = _user_of(asking)
                if user != os.geteuid():
                    raise RendezvousError(
                        f"user {user} offers this job's secret, not {os.geteuid()}, to whom the job "
                        f"belongs: all ranks of a host must be processes of one user"
                    )
                with asking.makefile("rb") as answer:
                    secret = answer.read(_HANDED + 1).decode("ascii", "replace")
        except (BlockingIOError, ConnectionResetError) as error:  # too many processes connect at once
            if time.monotonic() >= deadline:
                raise RendezvousError(_not_handed(error)) from error
            time.sleep(_PATIENCE)
            continue
        except OSError as error:
            raise RendezvousError(_not_handed(error)) from error
        if len(secret) != _HANDED:
            raise RendezvousError(
                f"rank 0 did not hand over the job's secret to user {os.geteuid()}: "
                "all ranks of a host must be processes of one user"
            )
        return secret


def _not_handed(error: OSError) -> str:
    return f"rank 0 does not hand over the job's secret, it may have ended: {error.strerror or error}"


def _user_of(connected: socket.socket) -> int:
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(found)[1]
    return user


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise RendezvousError(
                    f"the file {path!r} of ADAPS_SECRET_FILE has mode {stat.S_IMODE(found.st_mode):03o} and "
                    f"belongs to user {found.st_uid}; it must be this user's ({os.geteuid()}) alone: "
                    f"chmod 600 {path}"
                )
            return file.read(_LONGEST + 1).decode()
    except OSError as error:
        raise RendezvousError(
            f"the file {path!r} of ADAPS_SECRET_FILE cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise RendezvousError(f"the file {path!r} of ADAPS_SECRET_FILE holds no text") from error


def _checked(secret: str, source: str) -> str:
    secret = secret.strip()
    if not _SHORTEST <= len(secret) <= _LONGEST:
        raise RendezvousError(
            f"{source} holds {len(secret)} characters; a secret has {_SHORTEST} to {_LONGEST}, for example "
            "what `head -c 32 /dev/urandom | base64` prints"
        )
    return secret
