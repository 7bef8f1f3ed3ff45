"""What nodes write into one folder: each its share, of which rank 0 makes the whole."""

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
from adaps.checkpoint.manifests import Content, File, Kind
from adaps.errors import AdapsError, CheckpointError

__all__ = ["collect", "find", "publisher_of", "remove", "write_share"]

_log = logging.getLogger("adaps")


def publisher_of(core: _core.Node, directory: Path, life: str, kind: Kind[Content]) -> Publisher[Content]:
    """The right of a node, of rank 0, to write to a directory for as long as it lives."""
    reference = weakref.ref(core)
    return Publisher(directory, life, lambda: _lives(reference()), kind)


def find(folder: Path) -> None:
    """Raise CheckpointError unless a folder is here that rank 0 made."""
    if not disk_calls.is_folder(folder):
        raise CheckpointError(
            f"the folder that rank 0 made in {folder.parent} is not there: the directory has to be on a "
            "file system that all nodes share"
        )


def write_share(folder: Path, rank: int, worker: int, clocks: Sequence[int], files: Sequence[File]) -> None:
    """Tell rank 0 of files that are on the disk, and of the clocks of the workers that they are of."""
    descriptor = disk_calls.create(path := folder / _name(rank, worker))
    try:
        share = {"clocks": list(clocks), "files": [dataclasses.asdict(file) for file in files]}
        with disk_calls.naming(path):
            disk_calls.write_at(descriptor, json.dumps(share).encode(), 0)
    finally:
        disk_calls.close(descriptor)
    disk_calls.sync_folder(folder)


def collect(folder: Path, world_size: int, shares: int) -> tuple[list[list[int]], list[File]]:
    """Clocks of each node's workers, and all files, as that many shares of each tell; these are removed."""
    clocks: list[list[int]] = []
    files: list[File] = []
    for rank in range(world_size):
        clocks.append([])
        for worker in range(shares):
            path = folder / _name(rank, worker)
            share = json.loads(disk_calls.read(path))
            clocks[rank] += share["clocks"]
            files += [File(**entry) for entry in share["files"]]
            disk_calls.remove_file(path)
    disk_calls.sync_folder(folder)
    return clocks, files


def remove(folder: Path) -> None:
    """Remove what was not published; what is left by a failure to do so goes with the next one."""
    try:
        disk_calls.remove_folder(folder)
    except OSError as error:
        _log.warning("%s, which was not completed, could not be removed: %s", folder, error)


def _name(rank: int, worker: int) -> str:
    return f"share-rank-{rank:04d}-worker-{worker:04d}.json"


def _lives(core: _core.Node | None) -> bool:
    """Whether a node can still write."""
    if core is None or core.closed:
        return False
    try:
        core.check()
    except AdapsError:
        return False
    return True
