"""What crashed runs left behind on this machine: processes, files in shared memory, scratch folders."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import psutil

from adabench.harness.scratch import abandoned_folders, sweep
from adabench.harness.spec import GROUP_VARIABLE

__all__ = ["Leftovers", "clean", "find"]

SHARED_MEMORY = Path("/dev/shm")
# torch names what loader processes hand over after the process that made it.
_SHARED_NAME = re.compile(r"torch_(\d+)_\w+")


class Leftovers(NamedTuple):
    """Of this user's, and of nothing that still runs."""

    processes: list[psutil.Process]
    shared_files: list[Path]
    folders: list[Path]


def find() -> Leftovers:
    """Processes of runs whose group is gone, shared memory of dead processes, folders nobody holds."""
    return Leftovers(_processes(), _shared_files(), abandoned_folders())


def clean(leftovers: Leftovers) -> None:
    """Kill the processes and remove the files."""
    for process in leftovers.processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue  # ended by itself
    psutil.wait_procs(leftovers.processes, timeout=5)
    for file in leftovers.shared_files:
        file.unlink(missing_ok=True)
    sweep()


def _processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            root = process.environ().get(GROUP_VARIABLE)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended meanwhile, or not to be looked at
        if root is not None and root.isdecimal() and not psutil.pid_exists(int(root)):
            found.append(process)
    return found


def _shared_files() -> list[Path]:
    found = []
    for file in SHARED_MEMORY.glob("torch_*"):
        name = _SHARED_NAME.fullmatch(file.name)
        try:
            mine = file.lstat().st_uid == os.getuid()
        except FileNotFoundError:
            continue
        if mine and name is not None and not psutil.pid_exists(int(name[1])):
            found.append(file)
    return found
