"""System calls of checkpoints and exports that read or change a disk.

On a network file system, each of these must also be atomic for all hosts: `link` and `create`, which fail if
the name is taken, `lock`, and the removal of a name. The other calls need not be.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "close",
    "create",
    "is_folder",
    "link",
    "lock",
    "make_folder",
    "names",
    "naming",
    "open_file",
    "process",
    "read",
    "remove_file",
    "remove_folder",
    "sync",
    "sync_folder",
    "unlock",
    "write_at",
]


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError of the body, because calls on a descriptor do not name it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


# Reading


def process() -> int:
    """The number of this process, on its host."""
    return os.getpid()


def names(path: Path) -> list[str]:
    """Return the sorted names in a folder. Entries that change during the call may be missing."""
    return sorted(os.listdir(path))


def is_folder(path: Path) -> bool:
    """Whether there is such a folder."""
    return path.is_dir()


def read(path: Path) -> bytes:
    """Return the content of a file."""
    return path.read_bytes()


def open_file(path: Path) -> BinaryIO:
    """Open a file to read it piece by piece."""
    return path.open("rb")


# Writing


def create(path: Path) -> int:
    """Create a file and return its descriptor; FileExistsError if the name is taken."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data`."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def sync(descriptor: int) -> None:
    """Block until the file's content is on the disk."""
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Block until the folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def close(descriptor: int) -> None:
    """Close a file."""
    os.close(descriptor)


def link(source: Path, target: Path) -> None:
    """Give a file another name in one step; FileExistsError if the name is taken."""
    os.link(source, target)


def make_folder(path: Path) -> None:
    """Make a folder, unless it exists."""
    path.mkdir(exist_ok=True)


def remove_file(path: Path) -> None:
    """Remove a file, if it exists."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder with its content, if it exists."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree(path)


def lock(path: Path, text: bytes) -> bytes | int:
    """Lock a file for this process, until its end at the latest, and write `text` into it.

    Returns a handle for `unlock`, or, if another process holds the lock, the text that it wrote.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # This does not use lockf: its lock would end as soon as any code of this process closed the same
        # file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    except BlockingIOError:
        held = os.pread(descriptor, 1 << 16, 0)
        os.close(descriptor)
        return held
    except BaseException:
        os.close(descriptor)
        raise
    _locked.add(descriptor)
    return descriptor


def unlock(handle: int) -> None:
    """Release a lock."""
    _locked.remove(handle)
    os.close(handle)


_locked: set[int] = set()


def _leave_locks_to_the_parent() -> None:
    """Release the locks in a forked child, which may outlive its parent."""
    for handle in _locked:
        os.close(handle)
    _locked.clear()


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)
