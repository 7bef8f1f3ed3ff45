"""Orphans of crashed runs on this machine: processes, scratch folders, files in shared memory."""

import os
import re
from pathlib import Path
from typing import NamedTuple

import psutil

from adabench.harness.machine.process_identity import HARNESS_VARIABLE, ProcessIdentity
from adabench.harness.machine.scratch import abandoned_folders, sweep

SHARED_MEMORY = Path("/dev/shm")
# torch names memory that it shares with loader processes by the id of the process.
_SHARED_NAME = re.compile(r"torch_(\d+)_\w+")


class Orphans(NamedTuple):
    """Remains of this user's processes that no longer run.

    Attributes
    ----------
    processes : list of psutil.Process
        Processes of runs that outlived their harness.
    folders : list of Path
        Scratch folders of such runs.
    shared_files : list of Path
        Files of torch in shared memory whose creator no longer exists. They may belong to another program, or
        be in use in another container, so they are never removed.
    """

    processes: list[psutil.Process]
    folders: list[Path]
    shared_files: list[Path]


def find() -> Orphans:
    """Find all orphans."""
    return Orphans(_processes(), abandoned_folders(), _shared_files())


def clean(orphans: Orphans) -> None:
    """Kill the processes and remove the folders."""
    for process in orphans.processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue  # The process has ended.
    psutil.wait_procs(orphans.processes, timeout=5)
    sweep()


def _processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            group = ProcessIdentity.parse(process.environ().get(HARNESS_VARIABLE, ""))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # The process has ended or may not be inspected.
        if group is not None and group.is_gone:
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
