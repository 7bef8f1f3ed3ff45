"""A disk that kills its process at a chosen call and then loses everything not synchronized.

It takes the place of the functions of `adaps.checkpoint.disk_calls` in a process that is to die. What the
operating system would lose in a power failure, a killed process loses nothing of; so the dying process says
what it had not synchronised, and `lose` does that to the files.
"""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaps.checkpoint import disk_calls

CHANGING = (
    *("create", "write_at", "sync", "sync_folder", "link", "make_folder", "remove_file", "remove_folder"),
)


class FaultyDisk:
    """Counts the calls that change the disk.

    Parameters
    ----------
    dies_at : int
        The number of the call that kills the process.
    moment : str
        ``before`` the call, ``amid`` it (half of what is written, some of the files removed) or ``after``.
    report : callable
        Given, just before the kill, what would not survive a loss of power.
    """

    def __init__(self, dies_at: int, moment: str, report: Callable[[dict[str, Any]], None]) -> None:
        self._left = dies_at
        self._moment = moment
        self._report = report
        self._paths: dict[int, Path] = {}
        self._unsynced_files: set[Path] = set()
        self._unsynced_names: set[Path] = set()
        self._original = {name: getattr(disk_calls, name) for name in CHANGING}
        for name in self._original:
            setattr(disk_calls, name, getattr(self, f"_{name}"))

    def _step(self, action: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        self._left -= 1
        if self._left > 0:
            return action()
        if self._moment == "after":
            action()
        elif self._moment == "amid" and half is not None:
            half()
        self._report(
            {"files": sorted(map(str, self._unsynced_files)), "names": sorted(map(str, self._unsynced_names))}
        )
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    def _create(self, path: Path) -> int:
        self._unsynced_files.add(path)
        self._unsynced_names.add(path)
        descriptor = int(self._step(lambda: self._original["create"](path)))
        self._paths[descriptor] = path
        return descriptor

    def _write_at(self, descriptor: int, data: Any, offset: int) -> None:
        self._unsynced_files.add(self._paths[descriptor])
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        write = self._original["write_at"]
        self._step(
            lambda: write(descriptor, view, offset), lambda: write(descriptor, view[: len(view) // 2], offset)
        )

    def _sync(self, descriptor: int) -> None:
        self._step(lambda: self._original["sync"](descriptor))
        self._unsynced_files.discard(self._paths[descriptor])

    def _sync_folder(self, path: Path) -> None:
        self._step(lambda: self._original["sync_folder"](path))
        self._unsynced_names = {name for name in self._unsynced_names if name.parent != path}

    def _link(self, source: Path, target: Path) -> None:
        self._unsynced_names.add(target)
        if source in self._unsynced_files:
            self._unsynced_files.add(target)
        self._step(lambda: self._original["link"](source, target))

    def _make_folder(self, path: Path) -> None:
        if not path.exists():
            self._unsynced_names.add(path)
        self._step(lambda: self._original["make_folder"](path))

    def _remove_file(self, path: Path) -> None:
        self._step(lambda: self._original["remove_file"](path))

    def _remove_folder(self, path: Path) -> None:
        def some() -> None:
            for file in list(path.iterdir())[::2]:
                file.unlink()

        self._step(lambda: self._original["remove_folder"](path), some)


def lose(unsynced: dict[str, Any], numbers: random.Random) -> None:
    """Make each thing that was not on the disk survive or not, by chance."""
    for name in unsynced["files"]:
        path = Path(name)
        if path.exists():
            size = path.stat().st_size
            kept = numbers.choice([size, 0, numbers.randint(0, size)])
            os.truncate(path, kept)
            if numbers.random() < 0.5:
                os.truncate(path, size)  # as long as it was, with zeros
    for name in unsynced["names"]:
        path = Path(name)
        if numbers.random() < 0.5 and path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def received(text: bytes) -> tuple[list[int], dict[str, Any] | None]:
    """The steps that a process acknowledged, and the changes that were not synchronized at its death."""
    acknowledged, unsynced = [], None
    for line in text.splitlines():
        message = json.loads(line)
        if isinstance(message, int):
            acknowledged.append(message)
        else:
            unsynced = message
    return acknowledged, unsynced
