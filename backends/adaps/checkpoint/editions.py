"""The editions of a directory: numbered manifests, which decide the checkpoint or export that it contains.

The edition with the highest number is valid. An edition is created completely and in one step, by a link to
the next number, which fails if that number is taken. A job begins to write with an edition that repeats the
last one's content. It then publishes its own editions, each with the number after its last. Therefore, once
another job has begun, all later calls of an earlier job fail, or get a number that is no longer valid. This
is guaranteed even if the earlier job was stopped at any instruction, for any time.

A job never removes a file that a later edition could need. After an edition is published, and only if it is
the newest one, a job removes files that existed before it and that it does not name. A job that could have
needed them is too late to publish.

A lock, which its process holds until it ends, warns a second job of the first one. If a file system has no
locks, or loses one because its holder cannot be reached, the editions still protect the directory.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic

from adaps.checkpoint import disk_calls, manifests
from adaps.checkpoint.manifests import Content, Edition, ManifestKind, Writer
from adaps.errors import CheckpointError

__all__ = ["VERSION_1", "Publisher", "edition_name", "newest", "newest_number"]

VERSION_1 = "manifest.json"
"""Name of the only manifest of a directory that version 1 wrote."""

_NUMBERED = re.compile(r"^manifest-([0-9]{8,18})\.json$")
_UNFINISHED = re.compile(r"^manifest-[0-9]{8,18}-[0-9a-f]{16}\.new$|^manifest\.json\.new$")
_LOCK = "writer.lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_MOST_TRIES = 100
"""Number of tries. A try fails only if another process publishes at that moment."""

_log = logging.getLogger("adaps")


def edition_name(number: int) -> str:
    """Name of the file of an edition."""
    return VERSION_1 if number == 0 else f"manifest-{number:08d}.json"


def newest_number(directory: Path) -> int | None:
    """Return the number of the valid edition; None if there is none."""
    found = _names(directory)
    numbers = [int(match[1]) for name in found if (match := _NUMBERED.match(name))]
    return max(numbers, default=0 if VERSION_1 in found else None)


def newest(directory: Path, kind: ManifestKind[Content]) -> Edition[Content] | None:
    """Return the valid edition; None if there is none.

    Raises
    ------
    CheckpointError
        If the edition is of another kind, cannot be read or is damaged.
    """
    if (found := _newest_text(directory)) is None:
        return None
    number, text = found
    return manifests.decode(directory / edition_name(number), text, number, kind)


class Publisher(Generic[Content]):
    """A job's right to write checkpoints, or exports, to a directory.

    Parameters
    ----------
    directory : Path
        Directory of the checkpoints or exports, which need not exist.
    life : str
        Identifier of 16 hexadecimal digits for this start of the job.
    lives : callable
        Function that returns whether the writing node still exists. If not, another node of this process may
        replace it.
    kind : ManifestKind
        Kind of the manifests: checkpoints or exports.
    """

    def __init__(
        self, directory: Path, life: str, lives: Callable[[], bool], kind: ManifestKind[Content]
    ) -> None:
        self._directory = directory
        self._lives = lives
        self._kind: ManifestKind[Content] = kind
        self._writer = Writer(
            life, disk_calls.process(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S")
        )
        self._last = 0

    def begin(self, folder: Path) -> None:
        """Make the folder of the next checkpoint or export.

        Raises
        ------
        CheckpointError
            If another job writes to the directory, or has begun to after this job.
        OSError
            If the folder cannot be created.
        """
        missing = [
            path for path in (self._directory, *self._directory.parents) if not disk_calls.is_folder(path)
        ]
        for path in reversed(missing):
            disk_calls.make_folder(path)
            disk_calls.sync_folder(path.parent)
        if self._last == 0:
            self._take_over()
        self.check()
        disk_calls.make_folder(folder)
        disk_calls.sync_folder(self._directory)

    def publish(self, make: Callable[[Content | None], Content]) -> None:
        """Publish the result of `make`, whose argument is the current content.

        All files of the new content must be on the disk.

        Raises
        ------
        CheckpointError
            If another job has begun to write to the directory. Nothing is published in this case.
        OSError
            If writing fails. The content may have been published.
        """
        for _ in range(_MOST_TRIES):
            before = newest(self._directory, self._kind)
            self._check(before)
            number = 1 + max(self._last, 0 if before is None else before.number)
            if self._published(number, make(None if before is None else before.content)):
                self._last = number
                return
        raise CheckpointError(
            f"{self._directory} changes again and again, but no job is recorded as its writer"
        )

    def check(self) -> None:
        """Raise CheckpointError if another job has begun to write to the directory after this job."""
        if self._last:
            self._check(newest(self._directory, self._kind))

    def end(self) -> None:
        """Release the directory, so that other jobs can write there."""
        place = self._place()
        if place in _locks and _locks[place][0] is self:
            _, handle = _locks.pop(place)
            if handle is not None:
                disk_calls.unlock(handle)

    def _take_over(self) -> None:
        """Publish an edition that repeats the last one's content, unless its writer still lives."""
        for _ in range(_MOST_TRIES):
            # A directory of another kind is refused before it is locked: its lock may be held for that kind.
            seen = newest(self._directory, self._kind)
            self._lock()
            try:
                before = newest(self._directory, self._kind)
                # They differ if another job has begun meanwhile. Locks may get lost, so it may hold one as
                # well: try again.
                if (seen and seen.number) == (before and before.number):
                    number = 1 if before is None else before.number + 1
                    if self._published(number, None if before is None else before.content):
                        self._last = number
                        return
            finally:
                if not self._last:
                    self.end()
        raise CheckpointError(f"{self._directory} is written to by other jobs again and again")

    def _check(self, found: Edition[Content] | None) -> None:
        if found is not None and (found.writer is None or found.writer.life != self._writer.life):
            raise CheckpointError(
                f"{self._directory} was taken over by {found.writer}: this job, {self._writer}, no longer "
                f"writes {self._kind.name}s there"
            )

    def _published(self, number: int, content: Content | None) -> bool:
        """Publish an edition. Returns whether it is the valid one now."""
        present = _names(self._directory)
        text = manifests.encode(self._writer, content, self._kind)
        unfinished = self._directory / f"manifest-{number:08d}-{secrets.token_hex(8)}.new"
        try:
            _write(unfinished, text)
            try:
                disk_calls.link(unfinished, self._directory / edition_name(number))
            except (FileExistsError, FileNotFoundError):
                # Either another job published first, or a network file system made the link and lost the
                # answer. The content of the directory, which is read below, shows which of them is true.
                pass
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise CheckpointError(
                        f"{self._directory} is on a file system without hard links, which "
                        f"{self._kind.name}s need: {error.strerror}"
                    ) from error
                raise
        finally:
            disk_calls.remove_file(unfinished)
        disk_calls.sync_folder(self._directory)
        if _newest_text(self._directory) != (number, text):
            return False
        needed = [] if content is None else content.folders
        self._remove([name for name in present if _is_superseded(name, number, needed)])
        return True

    def _remove(self, superseded: list[str]) -> None:
        """Remove files that no edition needs. If that fails, the next edition removes them."""
        for name in superseded:
            path = self._directory / name
            try:
                if manifests.is_folder_name(name):
                    disk_calls.remove_folder(path)
                else:
                    disk_calls.remove_file(path)
            except OSError as error:
                left = self._kind.article
                _log.warning("%s, which is left of %s, could not be removed: %s", path, left, error)

    def _lock(self) -> None:
        place = self._place()
        other, handle = _locks.get(place, (None, None))
        if other is None:
            try:
                answer = disk_calls.lock(self._directory / _LOCK, str(self._writer).encode())
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                _log.warning(
                    "%s cannot be locked, so a second job is detected only when it writes there: %s",
                    self._directory,
                    error.strerror,
                )
            else:
                if isinstance(answer, bytes):
                    holder = " ".join(answer.decode(errors="replace").split()) or "another process"
                    raise self._in_use(holder)
                handle = answer
        elif other is not self and other._lives():
            raise self._in_use(f"another node of this process, {other._writer},")
        _locks[place] = self, handle

    def _in_use(self, holder: str) -> CheckpointError:
        return CheckpointError(
            f"{self._directory} is in use: {holder} writes its {self._kind.name}s there; give each job a "
            "directory of its own, or end that one"
        )

    def _place(self) -> tuple[int, str]:
        return disk_calls.process(), os.path.realpath(self._directory)


# The key includes the process, because a forked child inherits this dictionary but not the locks.
_locks: dict[tuple[int, str], tuple[Publisher[Any], int | None]] = {}


def _newest_text(directory: Path) -> tuple[int, bytes] | None:
    for _ in range(_MOST_TRIES):
        number = newest_number(directory)
        if number is None:
            return None
        path = directory / edition_name(number)
        try:
            return number, disk_calls.read(path)
        except FileNotFoundError:
            continue  # a newer edition has replaced it in between
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    raise CheckpointError(f"{path} is in its directory, but there is no such file")


def _names(directory: Path) -> list[str]:
    """Return the names in the directory, or none if it does not exist."""
    try:
        found = disk_calls.names(directory)
        # A single listing may miss both the edition that is removed and the one that replaces it.
        while (again := disk_calls.names(directory)) != found:
            found = again
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be read: {error.strerror}") from error
    return found


def _is_superseded(name: str, number: int, needed: list[str]) -> bool:
    """Return whether a file or folder is no longer needed once the edition `number` is published.

    `needed` contains the names of the folders that this edition uses.
    """
    if manifests.is_folder_name(name):
        return name not in needed
    numbered = _NUMBERED.match(name)
    return (
        name == VERSION_1
        or bool(_UNFINISHED.match(name))
        or (numbered is not None and int(numbered[1]) < number)
    )


def _write(path: Path, text: bytes) -> None:
    descriptor = disk_calls.create(path)
    try:
        with disk_calls.naming(path):
            disk_calls.write_at(descriptor, text, 0)
            disk_calls.sync(descriptor)
    finally:
        disk_calls.close(descriptor)
