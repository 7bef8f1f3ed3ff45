"""The invariants of every simulated world, checked from its events independently of the code under test."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.disk import Disk, File
from tests.simulation.world import Process, Violation, World

__all__ = ["Checker"]

_NUMBERED = re.compile(r"^manifest-([0-9]{8,18})\.json$")


class Told(NamedTuple):
    """The content of a manifest."""

    number: int
    life: str
    content: Any

    @property
    def parts(self) -> list[Any]:
        """The parts of an export, or the checkpoint alone; each part has a folder and files."""
        if self.content is None:
            return []
        parts: list[Any] = self.content.get("parts", [self.content])
        return parts


class Checker:
    """Receives events and raises Violation, also for errors that a thread would keep to itself.

    For meetings: all members have the same addresses, each its own at its rank, and none of a process that
    had died before rank 0 of the meeting came. For checkpoints and exports: the files that the newest
    manifest names are complete at every moment, even after a loss of power. Only the process that published
    last, or repeats that publication, may publish the next edition. Acknowledged editions are not lost. All
    ranks restore the same edition, which was the newest one during the restore; a read export was the newest
    one while it was read, and holds the state of one moment. No process takes over from one that lives and
    has not lost its lock.
    """

    def __init__(self, world: World, disk: Disk, directory: Path) -> None:
        self.world, self.disk, self.directory = world, disk, directory
        self.acknowledged = 0
        self.meetings: dict[str, list[str]] = {}
        self.came: dict[str, tuple[Process, float]] = {}
        self.effective: list[tuple[float, Told | None]] = []
        self.restored: dict[str, Any] = {}
        self.writers: dict[str, Process] = {}
        disk.on_link, disk.on_change = self._ending(self.linked), self._ending(self.changed)

    def arrives(self, address: str) -> None:
        """A process begins to meet others."""
        self.came[address] = self.world.me, self.world.now

    def met(self, life: str, rank: int, address: str, addresses: list[str]) -> None:
        """A process has met others."""
        if self.meetings.setdefault(life, addresses) != addresses:
            raise Violation(f"{self.world.me} met {addresses}, others met {self.meetings[life]}")
        if addresses[rank] != address:
            raise Violation(f"{self.world.me} of rank {rank} met {addresses}, and is {address}")
        begun = self.came[addresses[0]][1]
        for other in addresses:
            process = self.came[other][0]
            if process.died is not None and process.died < begun:
                raise Violation(f"{self.world.me} met {process}, which died at {process.died:.2f}")

    def linked(self, target: Path, data: bytes, before: dict[Path, File | None]) -> None:
        """A file has got a name."""
        numbered = _NUMBERED.match(target.name)
        if numbered is None or target.parent != self.directory:
            return
        last = self._newest(before)
        if last is not None and last.number > int(numbered[1]):
            return  # it does not count
        new = self._told(int(numbered[1]), data)
        self.effective.append((self.world.now, new))
        self.writers[new.life] = self.world.me
        if last is None or new.life == last.life:
            return
        if new.content != last.content or new.number != last.number + 1:
            raise Violation(f"{self.world.me} published {new}, though the newest was {last}")
        holder = self.writers[last.life]
        if holder in self.disk.holders and holder is not self.world.me and not holder.is_gone:
            raise Violation(f"{self.world.me} took over from {holder}, which lives and holds the lock")

    def changed(self) -> None:
        """The disk is another one now."""
        newest = self._newest(self.disk.visible)
        if newest is None or newest.number < self.acknowledged:
            if self.acknowledged:
                raise Violation(f"manifest {self.acknowledged} was acknowledged, and the newest is {newest}")
            return
        for part in newest.parts:
            for file in part["files"]:
                path = self.directory / part["folder"] / file["name"]
                found = self.disk.visible.get(path)
                if found is None or len(found.data) != file["bytes"]:
                    raise Violation(f"{path} of manifest {newest.number} is gone or too short")
                start = 8 + int.from_bytes(found.data[:8], "little")
                if zlib.crc32(found.data[:start]) != file["checksums"]["header"]:
                    raise Violation(f"{path} of manifest {newest.number} is damaged")

    def power_was_lost(self) -> None:
        """A published but not yet acknowledged edition may be lost, and the previous one is valid again."""
        self.effective.append((self.world.now, self._newest(self.disk.visible)))

    def acknowledges(self, life: str) -> None:
        """A process learned that its checkpoint is written."""
        newest = self._newest(self.disk.visible)
        if newest is not None and newest.life == life:
            self.acknowledged = max(self.acknowledged, newest.number)

    def restores(self, life: str, begun: float, extra: dict[str, Any]) -> None:
        """A process has finished a restore that it began at time `begun`."""
        content = extra["life"], extra["step"]
        if self.restored.setdefault(life, content) != content:
            raise Violation(f"{self.world.me} restored {content}, others {self.restored[life]}")
        if extra["life"] not in (lives := self._lives(begun)):
            raise Violation(f"{self.world.me} restored {content}, which was not the newest: {lives}")

    def loads(self, begun: float, tells: Callable[[str], str | None]) -> None:
        """A process has read an export since `begun`; `tells` names the differences from a life's export."""
        lives = self._lives(begun)
        wrong = {life: tells(life) for life in lives}
        if all(wrong.values()):
            raise Violation(f"{self.world.me} has read what no newest export was: {wrong}")

    def _lives(self, begun: float) -> set[str]:
        """Who wrote what counted at that time or later."""
        before = [told for time, told in self.effective if time <= begun][-1:]
        during = [told for time, told in self.effective if time > begun]
        return {told.parts[-1]["folder"][-16:] for told in before + during if told is not None and told.parts}

    def _ending(self, look: Callable[..., None]) -> Callable[..., None]:
        def looked(*arguments: Any) -> None:
            try:
                look(*arguments)
            except Violation as violation:
                self.world.failure = self.world.failure or violation
                raise

        return looked

    def _newest(self, names: dict[Path, File | None]) -> Told | None:
        found = {
            int(match[1]): file
            for path, file in names.items()
            if path.parent == self.directory and (match := _NUMBERED.match(path.name)) and file is not None
        }
        return self._told(max(found), found[max(found)].data) if found else None

    def _told(self, number: int, data: bytes) -> Told:
        try:
            whole = json.loads(data)
        except ValueError:
            raise Violation(f"manifest {number} is not whole") from None
        (content,) = (whole[kind] for kind in ("checkpoint", "export") if kind in whole)
        return Told(number, whole["writer"]["life"], content)
