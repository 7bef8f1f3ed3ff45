"""Scratch folders of runs: gone with their run, or with the next start if the harness was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["abandoned_folders", "scratch_folder", "sweep"]

_PREFIX = "adabench-"
# A folder this young may not have been locked yet by the process that has just made it.
_YOUNG_SECONDS = 10.0


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for one run, locked while this process lives, however it ends, and removed on leaving."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def sweep() -> list[Path]:
    """Remove this user's scratch folders whose process died before it could; returns them."""
    swept = []
    for folder in _abandoned():
        shutil.rmtree(folder, ignore_errors=True)
        swept.append(folder)
    return swept


def abandoned_folders() -> list[Path]:
    """What `sweep` would remove."""
    return list(_abandoned())


def _abandoned() -> Iterator[Path]:
    """Each folder is locked as long as the caller has it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            # No folder, or another user's, or its owner has just removed it.
            continue
        try:
            status = os.fstat(handle)
            if status.st_uid != os.getuid() or time.time() - status.st_ctime < _YOUNG_SECONDS:
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            yield folder
        finally:
            os.close(handle)
