"""Scratch folders of runs: removed with their run, or at the next start if the harness was killed.

A folder is only removed if this module has marked it and the folder's owner has certainly ended.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from adabench.harness.machine.process_identity import ProcessIdentity
from adabench.results.store import UNDECODABLE

MARKER = ".adabench-scratch-folder.json"
_PREFIX = "adabench-"
_LONGEST_MARKER = 4096


class Marker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="adabench scratch"):
    """Marks a folder as one that may be removed; valid for that folder only, and for no copy of it.

    Attributes
    ----------
    purpose : str
        Description for users who find the folder.
    name : str
        Name of the folder.
    device, inode : int
        Identity of the folder on its file system.
    owner : ProcessIdentity
        Process that needs the folder.
    """

    purpose: str
    name: str
    device: int
    inode: int
    owner: ProcessIdentity


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A folder for one run, marked and locked while this process lives; removed at the end of the context."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Locked before the marker is written: a folder with a marker and no lock counts as left behind.
        fcntl.flock(handle, fcntl.LOCK_EX)
        status = os.fstat(handle)
        marker = Marker(
            purpose=purpose,
            name=folder.name,
            device=status.st_dev,
            inode=status.st_ino,
            owner=ProcessIdentity.this_process(),
        )
        (folder / MARKER).write_bytes(msgspec.json.format(msgspec.json.encode(marker), indent=1) + b"\n")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def sweep() -> list[Path]:
    """Remove this user's scratch folders that were left by killed processes.

    Returns
    -------
    list of Path
        Folders that were removed. `abandoned_folders` returns the folders that cannot be removed.
    """
    swept = []
    for folder in _abandoned():
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            swept.append(folder)
    return swept


def abandoned_folders() -> list[Path]:
    """Folders that `sweep` would remove."""
    return list(_abandoned())


def _abandoned() -> Iterator[Path]:
    """Yield abandoned folders; each is locked until the next is requested."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            # It is not a folder, it belongs to another user, or its owner has just removed it.
            continue
        try:
            if _is_abandoned(handle, folder.name):
                yield folder
        finally:
            os.close(handle)


def _is_abandoned(folder: int, name: str) -> bool:
    """Whether the open folder has a valid marker and no owner; if so, it is locked now."""
    marker = _marker(folder)
    status = os.fstat(folder)
    here = (name, status.st_dev, status.st_ino)
    if marker is None or (marker.name, marker.device, marker.inode) != here or not marker.owner.is_gone:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return status.st_uid == os.getuid()


def _marker(folder: int) -> Marker | None:
    """The marker in an open folder, if this user's harness wrote one."""
    try:
        # Not blocking: opening a pipe of that name would wait.
        handle = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None
        try:
            return msgspec.json.decode(file.read(_LONGEST_MARKER), type=Marker)
        except UNDECODABLE:
            return None
