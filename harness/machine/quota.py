"""A process that gets only a part of a core: a control group of the kernel's, which needs root."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil

__all__ = ["Quota", "QuotaUnavailable", "enter"]

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "adabench-"
_PERIOD = 10_000
"""Microseconds in which a process gets its part: short ones, so that a node answers soon, though slowly."""
_LEAST = 1_000
"""Microseconds of a part: the kernel knows no shorter one."""
_numbers = count()


class QuotaUnavailable(RuntimeError):
    """This process may not make control groups; one sentence that becomes a run's reason."""


class Quota:
    """A control group whose processes get so much of a core, as long as the context lasts.

    Parameters
    ----------
    cores : float
        More than 0; all threads of all its processes together.

    Attributes
    ----------
    folder : Path
        The group, which `enter` takes.

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
                _tell(self.folder / "cpu.cfs_period_us", f"{period}")
                _tell(self.folder / "cpu.cfs_quota_us", f"{quota}")
            else:
                _tell(self.folder / "cpu.max", f"{quota} {period}")
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
        """Its processes have ended; if one has not, whoever makes the next group removes this one."""
        with suppress(OSError):
            self.folder.rmdir()


def enter(folder: str | Path) -> None:
    """Bring this process into a group, with the threads and processes that it starts from now on."""
    _tell(Path(folder) / "cgroup.procs", f"{os.getpid()}")


def _tell(file: Path, text: str) -> None:
    """Never makes the file: where there are no control groups there may be a folder of their name."""
    with file.open("r+") as opened:
        opened.write(text)


def _remove_left_behind(root: Path) -> None:
    """Groups of processes that were killed; only empty ones can be removed."""
    for folder in root.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            with suppress(OSError):
                folder.rmdir()
