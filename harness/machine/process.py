"""Processes that end together: death signals, sub-reapers, and killing everything below a process."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time

import psutil

__all__ = ["adopt_orphans", "allow_tracing", "die_with_parent", "kill_descendants", "kill_tree", "set_name"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, even by SIGKILL (Linux; elsewhere nothing).

    Parameters
    ----------
    parent : int
        The parent's process id; if it has died before this call, this process ends here.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies, so that they can be found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def allow_tracing() -> None:
    """Let other processes of the same user look at this one, where the kernel forbids it by default."""
    try:
        _prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without Yama, which would forbid it
            raise


def set_name(name: str) -> None:
    """Let ``ps`` and ``top`` show this process by a name of at most 15 ASCII characters."""
    _prctl(_PR_SET_NAME, name.encode("ascii"))


def kill_descendants(root: psutil.Process, seconds: float = 5.0) -> list[int]:
    """Kill everything below a process, again and again until nothing is left.

    Returns
    -------
    list of int
        What was still running after `seconds`; empty unless a process hangs in the kernel.
    """
    deadline = time.monotonic() + seconds
    alive: list[psutil.Process] = []
    while time.monotonic() < deadline:
        try:
            alive = root.children(recursive=True)
        except psutil.NoSuchProcess:
            alive = [process for process in alive if process.is_running()]
        if not alive:
            return []
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(alive, timeout=0.2)
    return [process.pid for process in alive]


def kill_tree(pid: int) -> list[int]:
    """Kill a process and everything below it; the process itself last, because it adopts its orphans."""
    try:
        root = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    left = kill_descendants(root)
    if pid != os.getpid():
        try:
            root.kill()
        except psutil.NoSuchProcess:
            return left
    return left


def _prctl(option: int, value: int | bytes) -> None:
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
