"""Files that nodes write into one folder, and lists of these files for rank 0."""

from __future__ import annotations

import dataclasses
import json
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path

from adaps import _core
from adaps.checkpoint import disk_calls
from adaps.checkpoint.editions import Publisher
from adaps.checkpoint.manifests import Content, File, ManifestKind
from adaps.errors import AdapsError, CheckpointError

__all__ = ["collect", "find", "publisher_of", "remove", "write_list"]

_log = logging.getLogger("adaps")


def publisher_of(
    core: _core.Node, directory: Path, life: str, kind: ManifestKind[Content]
) -> Publisher[Content]:
    """Return the Publisher of the node of rank 0, which is valid as long as the node exists."""
    reference = weakref.ref(core)
    return Publisher(directory, life, lambda: _lives(reference()), kind)


def find(folder: Path) -> None:
    """Raise CheckpointError unless this host has access to the folder that rank 0 made."""
    if not disk_calls.is_folder(folder):
        raise CheckpointError(
            f"the folder that rank 0 made in {folder.parent} is not there: the directory has to be on a "
            "file system that all nodes share"
        )


def write_list(folder: Path, rank: int, worker: int, clocks: Sequence[int], files: Sequence[File]) -> None:
    """Write a list for rank 0: files that are on the disk, and the clocks of the workers that wrote them."""
    descriptor = disk_calls.create(path := folder / _name(rank, worker))
    try:
        listed = {"clocks": list(clocks), "files": [dataclasses.asdict(file) for file in files]}
        with disk_calls.naming(path):
            disk_calls.write_at(descriptor, json.dumps(listed).encode(), 0)
    finally:
        disk_calls.close(descriptor)
    disk_calls.sync_folder(folder)


def collect(folder: Path, world_size: int, lists: int) -> tuple[list[list[int]], list[File]]:
    """Read and remove `lists` lists of each node. Returns the clocks of their workers, and all files."""
    clocks: list[list[int]] = []
    files: list[File] = []
    for rank in range(world_size):
        clocks.append([])
        for worker in range(lists):
            path = folder / _name(rank, worker)
            listed = json.loads(disk_calls.read(path))
            clocks[rank] += listed["clocks"]
            files += [File(**entry) for entry in listed["files"]]
            disk_calls.remove_file(path)
    disk_calls.sync_folder(folder)
    return clocks, files


def remove(folder: Path) -> None:
    """Remove an unpublished folder. If this fails, the next publication removes it."""
    try:
        disk_calls.remove_folder(folder)
    except OSError as error:
        _log.warning("%s, which was not completed, could not be removed: %s", folder, error)


def _name(rank: int, worker: int) -> str:
    return f"files-rank-{rank:04d}-worker-{worker:04d}.json"


def _lives(core: _core.Node | None) -> bool:
    """Whether a node exists, is open and has lost no other node."""
    if core is None or core.closed:
        return False
    try:
        core.check()
    except AdapsError:
        return False
    return True
