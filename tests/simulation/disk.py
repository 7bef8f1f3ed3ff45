"""A disk that all simulated processes share; a power loss discards changes that were not synchronized."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

from adaps.checkpoint import disk_calls
from tests.simulation.world import Process, World

__all__ = ["Disk"]


class File:
    """The content of a file, independent of its names."""

    def __init__(self) -> None:
        self.data = b""
        self.synced = False


class Disk:
    """Has the functions of `adaps.checkpoint.disk_calls`; each is a turn, and then one step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.visible: dict[Path, File | None] = {Path("/"): None, Path("/shared"): None}  # None: a folder
        self.durable = dict(self.visible)
        self.locks: dict[Path, Process] = {}
        self.holders: dict[Process, Path] = {}  # the processes from which nobody may take the lock
        self._open: dict[int, File] = {}
        self._last_descriptor = 0
        self._handles: dict[int, Path] = {}
        self.on_change: Any = lambda: None
        self.on_link: Any = lambda target, data: None

    def functions(self) -> dict[str, Any]:
        """The functions that replace those of `adaps.checkpoint.disk_calls`."""
        return {name: getattr(self, name) for name in disk_calls.__all__ if name != "naming"}

    # Calls that read

    def process(self) -> int:
        return self.world.me.number

    def names(self, path: Path) -> list[str]:
        self.world.turn()
        before = self._children(path)
        self.world.turn()
        after = self._children(path)
        # Names that appear or vanish meanwhile may be listed or not.
        changed = {name for name in before ^ after if self.world.numbers.random() < 0.5}
        return sorted((before & after) | changed)

    def is_folder(self, path: Path) -> bool:
        self.world.turn()
        return self.visible.get(path, 0) is None

    def read(self, path: Path) -> bytes:
        self.world.turn()
        return self._file(path).data

    def open_file(self, path: Path) -> io.BytesIO:
        return io.BytesIO(self.read(path))

    # Calls that change the disk

    def create(self, path: Path) -> int:
        self.world.turn()
        self._require_folder(path.parent)
        if path in self.visible:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        file = self.visible[path] = File()
        self._last_descriptor += 1
        descriptor = self._last_descriptor
        self._open[descriptor] = file
        return descriptor

    def write_at(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        self.world.turn()
        file, new = self._open[descriptor], bytes(memoryview(data).cast("B")) if len(data) else b""
        file.data = file.data[:offset].ljust(offset, b"\0") + new + file.data[offset + len(new) :]
        file.synced = False
        self.on_change()

    def sync(self, descriptor: int) -> None:
        self.world.turn()
        self._open[descriptor].synced = True

    def is_manifest(self, descriptor: int) -> bool:
        """Whether it is an open manifest."""
        return self._open[descriptor].data.startswith(b"{")

    def sync_folder(self, path: Path) -> None:
        self.world.turn()
        self._require_folder(path)
        for name in self._below(self.durable, path) | self._below(self.visible, path):
            if name in self.visible:
                self.durable[name] = self.visible[name]
            else:
                self.durable.pop(name, None)

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)

    def link(self, source: Path, target: Path) -> None:
        self.world.turn("publish")
        file = self._file(source)
        if target in self.visible:
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        self.put(target, file)

    def put(self, target: Path, file: File) -> None:
        """Give a file a name."""
        before = dict(self.visible)
        self.visible[target] = file
        self.on_link(target, file.data, before)
        self.on_change()

    def make_folder(self, path: Path) -> None:
        self.world.turn()
        self._require_folder(path.parent)
        self.visible.setdefault(path, None)

    def remove_file(self, path: Path) -> None:
        self.world.turn("remove")
        self.visible.pop(path, None)
        self.on_change()

    def remove_folder(self, path: Path) -> None:
        for name in sorted(self._below(self.visible, path)):
            self.remove_file(name)
        self.world.turn()
        if self._below(self.visible, path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        self.visible.pop(path, None)
        self.on_change()

    def lock(self, path: Path, text: bytes) -> bytes | int:
        self.world.turn()
        if path in self.locks:
            return f"process {self.locks[path].number}".encode()
        self.visible.setdefault(path, File())
        self.locks[path] = self.holders_of(path)
        handle = len(self._handles) + 1
        self._handles[handle] = path
        return handle

    def holders_of(self, path: Path) -> Process:
        """Record that this process has the lock, as it reported."""
        self.holders[self.world.me] = path
        return self.world.me

    def unlock(self, handle: int) -> None:
        self.world.turn()
        self.free(self.world.me)

    # Faults of the disk

    def free(self, process: Process) -> None:
        """A process has ended, or lets go."""
        self.holders.pop(process, None)
        for path in [path for path, holder in self.locks.items() if holder is process]:
            del self.locks[path]

    def lose_power(self) -> None:
        """Every renaming and every write that was not synchronized survives or is lost at random."""
        numbers = self.world.numbers
        after: dict[Path, File | None] = {}
        for path in sorted({*self.durable, *self.visible}, key=str):
            source = self.durable if numbers.random() < 0.5 else self.visible
            if self.durable.get(path, 0) is self.visible.get(path, 0) or path in source:
                chosen = source.get(path, self.visible.get(path, 0))
                if chosen != 0:
                    after[path] = chosen  # type: ignore[assignment]
        for file in {id(file): file for file in after.values() if file is not None}.values():
            if not file.synced:
                file.data = file.data[: numbers.randint(0, len(file.data))]
                file.synced = True
        self.visible = {
            path: file for path, file in after.items() if all(above in after for above in path.parents)
        }
        self.durable = dict(self.visible)
        self.on_change()

    def _children(self, path: Path) -> set[str]:
        self._require_folder(path)
        return {name.name for name in self._below(self.visible, path)}

    def _below(self, names: dict[Path, File | None], path: Path) -> set[Path]:
        return {name for name in names if name.parent == path and name != path}

    def _file(self, path: Path) -> File:
        file = self.visible.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return file

    def _require_folder(self, path: Path) -> None:
        if self.visible.get(path, 0) is not None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
