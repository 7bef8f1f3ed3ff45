"""Processes that end together: death signals, sub-reapers, and killing everything below a process."""

import atexit
import ctypes
import errno
import os
import signal
import sys
import time

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1

_exit_code: int | None = None


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, even by SIGKILL; no effect outside Linux.

    Parameters
    ----------
    parent : int
        Process id of the parent. If the parent has died before this call, this process ends at once.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, so that they can be found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def allow_tracing() -> None:
    """Let other processes of the same user trace this one, if the kernel forbids it by default."""
    try:
        _prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY)
    except OSError as error:
        if error.errno != errno.EINVAL:  # A kernel without Yama does not forbid it.
            raise


def set_name(name: str) -> None:
    """Let ``ps`` and ``top`` show this process by a name of at most 15 ASCII characters."""
    _prctl(_PR_SET_NAME, name.encode("ascii"))


def prepare_quick_end() -> None:
    """Make `end_quickly` possible; it skips functions that `atexit` has registered before this call."""
    atexit.register(_end_if_quick)


def end_quickly(exit_code: int) -> int:
    """Let this process end as soon as the functions registered with `atexit` have run.

    This skips the interpreter's finalisation, which takes 0.25 s once torch is imported.

    Returns
    -------
    int
        The value of `exit_code`.
    """
    global _exit_code
    _exit_code = exit_code
    return exit_code


def _end_if_quick() -> None:
    if _exit_code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)


def kill_descendants(root: psutil.Process, seconds: float = 5.0) -> list[int]:
    """Kill everything below a process, again and again until nothing is left.

    Returns
    -------
    list of int
        Identifiers of the processes that still run after `seconds`. The list is empty unless a process hangs
        in the kernel.
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
