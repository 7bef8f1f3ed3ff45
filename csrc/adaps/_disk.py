"""The few system calls that checkpoints are written with: every change of the disk goes through here."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "create",
    "make_folder",
    "naming",
    "remove_file",
    "remove_folder",
    "replace",
    "sync",
    "sync_folder",
    "write_at",
]


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError of the body name the file, which a call on a descriptor does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def create(path: Path) -> int:
    """A descriptor of a new, empty file."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data`."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def sync(descriptor: int) -> None:
    """Return when the file's content is on the disk."""
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Return when the folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(source: Path, target: Path) -> None:
    """Give a file another's name, whose content is lost, in one step."""
    os.replace(source, target)


def make_folder(path: Path) -> None:
    """Make a folder; it may exist."""
    path.mkdir(exist_ok=True)


def remove_file(path: Path) -> None:
    """Remove a file; it may be gone already."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it."""
    shutil.rmtree(path)
