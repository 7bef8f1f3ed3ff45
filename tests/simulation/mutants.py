"""Mistakes that the simulation has to find, each put in the place of the code that does not make it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from adaps.checkpoint import disk_calls, editions, manifests
from adaps.checkpoint.manifests import CheckpointManifest
from adaps.rendezvous import Rendezvous
from tests.simulation.job import DIRECTORY, Simulation

__all__ = ["MUTANTS"]

Mutant = Callable[[Simulation], contextlib.AbstractContextManager[Any]]


def stale_generation(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """A process accepts a list of members that it is not in."""
    return mock.patch.object(Rendezvous, "_is_in", return_value=True)


def last_address(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """All generations write the entries of their members under the same keys."""
    original = Rendezvous._key

    def key(self: Rendezvous, *parts: object) -> str:
        return original(self, *(parts[1:] if "member" in parts else parts))

    return mock.patch.object(Rendezvous, "_key", key)


def no_fence(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """A manifest takes its number even if another process has published that number."""

    def replace(source: Path, target: Path) -> None:
        disk = simulation.disk
        simulation.world.turn("publish")
        disk.put(target, disk._file(source))

    return mock.patch.object(disk_calls, "link", replace)


def deletes_what_is_new(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """All folders that the new edition does not name are removed, not only those that existed before it."""
    original = editions.Publisher._published

    def published(
        self: editions.Publisher[CheckpointManifest], number: int, content: CheckpointManifest | None
    ) -> bool:
        if not original(self, number, content):
            return False
        kept = [] if content is None else content.folders
        for name in disk_calls.names(self._directory):
            if manifests.is_folder_name(name) and name not in kept:
                disk_calls.remove_folder(self._directory / name)
        return True

    return mock.patch.object(editions.Publisher, "_published", published)


def only_the_last_part_kept(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """Only the last of the parts that an export consists of is kept."""
    original = editions._is_superseded

    def is_superseded(name: str, number: int, needed: list[str]) -> bool:
        return original(name, number, needed[-1:])

    return mock.patch.object(editions, "_is_superseded", is_superseded)


def unsynced_files(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """The manifest is synchronized to the disk, but the files that it names are not."""
    original = simulation.disk.sync

    def sync(descriptor: int) -> None:
        if simulation.disk.is_manifest(descriptor):
            original(descriptor)

    return mock.patch.object(disk_calls, "sync", sync)


def unsynced_names(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """A checkpoint is acknowledged before its manifest's name is on the disk."""

    def sync_folder(path: Path) -> None:
        if path != DIRECTORY:
            simulation.disk.sync_folder(path)

    return mock.patch.object(disk_calls, "sync_folder", sync_folder)


def lock_of_the_living(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """A lock is given to any process that asks for it."""

    def lock(path: Path, text: bytes) -> bytes | int:
        simulation.disk.locks.pop(path, None)
        return simulation.disk.lock(path, text)

    return mock.patch.object(disk_calls, "lock", lock)


def lost_lock(simulation: Simulation) -> contextlib.AbstractContextManager[Any]:
    """A process that once got the lock takes over later without checking who writes by then."""

    def take_over(self: editions.Publisher[CheckpointManifest]) -> None:
        self._lock()
        while self._last == 0:
            before = editions.newest(self._directory, self._kind)
            number = 1 if before is None else before.number + 1
            if self._published(number, None if before is None else before.content):
                self._last = number

    return mock.patch.object(editions.Publisher, "_take_over", take_over)


MUTANTS: dict[str, Mutant] = {
    "stale generation accepted": stale_generation,
    "address of the last life read": last_address,
    "rename without fence": no_fence,
    "folders deleted that came later": deletes_what_is_new,
    "all but an export's last part removed": only_the_last_part_kept,
    "manifest published before its files are synced": unsynced_files,
    "acknowledged before its name is synced": unsynced_names,
    "lock taken over while its holder lives": lock_of_the_living,
    "taken over by a lock that was lost": lost_lock,
}
