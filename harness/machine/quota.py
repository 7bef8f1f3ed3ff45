"""Processes that get only a part of a core, by a control group of the kernel; needs root."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "adabench-"
_PERIOD = 10_000
"""Microseconds in which a process gets its part; short, so that a slow node still answers soon."""
_LEAST = 1_000
"""Minimum microseconds of a part that the kernel accepts."""
_numbers = count()


class QuotaUnavailable(RuntimeError):
    """Error if this process may not make control groups; its text becomes a run's reason."""


class Quota:
    """A control group with a limited share of the cores; a context manager that removes it.

    Parameters
    ----------
    cores : float
        Number of cores for all threads of the group's processes together; more than 0.

    Attributes
    ----------
    folder : Path
        Folder of the group, an argument of `enter`.

    Raises
    ------
    QuotaUnavailable
        If it cannot be made: that needs root, and the controller ``cpu`` of version 1 or 2.
    """

    def __init__(self, cores: float) -> None:
        period = max(_PERIOD, math.ceil(_LEAST / cores))
        quota = round(cores * period)
        first = (_ROOT / "cpu").is_dir()
        root = _ROOT / "cpu" if first else _ROOT
        _remove_left_behind(root)
        self.folder = root / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        try:
            self.folder.mkdir()
            if first:
                _write(self.folder / "cpu.cfs_period_us", f"{period}")
                _write(self.folder / "cpu.cfs_quota_us", f"{quota}")
            else:
                _write(self.folder / "cpu.max", f"{quota} {period}")
        except OSError as error:
            self._remove()
            raise QuotaUnavailable(
                f"a node with a part of a core needs root and the kernel's control groups: {error.filename}: "
                f"{(error.strerror or str(error)).lower()}"
            ) from error

    def __enter__(self) -> Quota:
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()

    def _remove(self) -> None:
        """Remove the group if its processes have ended; otherwise the next `Quota` removes it."""
        with suppress(OSError):
            self.folder.rmdir()


def enter(folder: str | Path) -> None:
    """Move this process to a group, with the threads and processes that it starts from now on."""
    _write(Path(folder) / "cgroup.procs", f"{os.getpid()}")


def _write(file: Path, text: str) -> None:
    """Write to an existing file: without control groups there may be an ordinary folder of that name."""
    with file.open("r+") as opened:
        opened.write(text)


def _remove_left_behind(root: Path) -> None:
    """Remove groups of harnesses that were killed; only empty groups can be removed."""
    for folder in root.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            with suppress(OSError):
                folder.rmdir()
