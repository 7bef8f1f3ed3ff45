"""The identity of a process, which lets a later process check that the process has ended."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from adabench.results.store import UNDECODABLE

HARNESS_VARIABLE = "ADABENCH_HARNESS"
"""Environment variable of all processes of runs: the `ProcessIdentity` of their harness."""

_PROC = Path("/proc")


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process of this machine, by values that no other process ever has.

    Process identifiers are used again, so the start time is part of it. The start time counts from the boot,
    so the boot is part of it. Containers have separate process identifiers, so their namespace is part of it.

    Attributes
    ----------
    pid : int
        Process identifier.
    started : int
        Clock ticks from the boot to the start of the process.
    namespace : str
        Namespace of process identifiers.
    boot : str
        The kernel's identifier of the boot.
    user : int
        User that the process belongs to.
    host : str
        Name of the host.
    """

    pid: int
    started: int
    namespace: str
    boot: str
    user: int
    host: str

    @staticmethod
    def this_process() -> ProcessIdentity:
        started = _started(os.getpid())
        assert started is not None
        return ProcessIdentity(
            pid=os.getpid(),
            started=started,
            namespace=_namespace(),
            boot=_boot(),
            user=os.getuid(),
            host=platform.node(),
        )

    @staticmethod
    def parse(text: str | bytes) -> ProcessIdentity | None:
        """The identity that `text` has written; None for any other text."""
        try:
            return msgspec.json.decode(text, type=ProcessIdentity)
        except UNDECODABLE:
            return None

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def is_gone(self) -> bool:
        """Whether it was a process of this user on this machine and certainly runs no more.

        False if that is unknown, for example for a process of another container.
        """
        if (self.user, self.host) != (os.getuid(), platform.node()):
            return False
        if self.boot != _boot():
            return True
        return self.namespace == _namespace() and _started(self.pid) != self.started


def _started(pid: int) -> int | None:
    """Start time of a process, in clock ticks since the boot; None if it does not exist or has ended."""
    try:
        text = (_PROC / f"{pid}" / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name, in brackets, may hold blanks and brackets itself.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _namespace() -> str:
    return os.readlink(_PROC / "self" / "ns" / "pid")


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
