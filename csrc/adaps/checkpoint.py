"""Checkpoints: what all nodes hold, in files, complete or invisible.

A directory holds one checkpoint: ``manifest.json``, and the files that it names in the folder that it names.
The next one is written to a folder of its own; then its manifest takes the place of the old one, in one step,
and the old folder goes. So what the manifest names is complete at any moment.

The files are in the safetensors format. Each node writes, for each table, the rows that it owns: ``rows``
(int64), ``values`` (float32, one row each) and ``state`` (float32, of the optimizer). Rows that nobody ever
touched are not written: they begin as the table's initializer says, in any run. Each worker can add arrays
and values of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from adaps import _contents, _core, _disk, _manifest
from adaps._manifest import File, Manifest, TableEntry
from adaps.errors import CheckpointError
from adaps.optimizers import SGD
from adaps.tables import Table

__all__ = ["Participant", "Restored"]

_T = TypeVar("_T")
_log = logging.getLogger("adaps")


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a worker gets back from a checkpoint beside the tables' content.

    Attributes
    ----------
    extra : dict
        What the worker of this number gave to `Node.checkpoint`; if another number of nodes or workers wrote
        the checkpoint, what the first worker of rank 0 gave.
    same_workers : bool
        Whether as many nodes and workers wrote the checkpoint as there are now.
    shares : int
        How many workers wrote it, of all nodes together.
    """

    extra: dict[str, Any]
    same_workers: bool
    shares: int


class Participant:
    """One worker in the collective calls of `adaps.Node` that write and restore checkpoints.

    Parameters
    ----------
    core : adaps._core.Node
        The node.
    tables : sequence of Table
        Its tables, as it was made with them.
    rank, world_size, workers, worker : int
        The node's number, how many there are, how many workers each has, and which this one is.
    """

    def __init__(
        self, core: _core.Node, tables: Sequence[Table], rank: int, world_size: int, workers: int, worker: int
    ) -> None:
        self._core = core
        self._tables = tables
        self._rank = rank
        self._world_size = world_size
        self._workers = workers
        self._worker = worker
        self._kv = core.worker(worker)
        self._leads_node = worker == 0
        self._leads_all = worker == 0 and rank == 0

    def write(self, directory: Path, extra: Mapping[str, Any]) -> None:
        """Write what all nodes hold; see `adaps.Node.checkpoint`."""
        arrays, values = _contents.split_extra(extra)
        with self._nothing_moves():
            try:
                self._write(directory, arrays, values)
            except CheckpointError:
                if self._leads_all:
                    _clean(directory)
                raise

    def restore(self, directory: Path) -> Restored:
        """Make what all nodes hold that of a checkpoint; see `adaps.Node.restore`."""
        manifest = self._together("read the checkpoint", lambda: self._suitable_manifest(directory))
        folder = directory / manifest.folder
        self._together("verify the checkpoint", lambda: self._verify_share(folder, manifest.files))
        with self._nothing_moves():
            restored = self._together("restore the checkpoint", lambda: self._load(folder, manifest))
        self._make_visible()
        return restored

    # All workers together

    @contextlib.contextmanager
    def _nothing_moves(self) -> Iterator[None]:
        """All writes of all workers are applied, and every key stays where it is."""
        self._kv.waitall()
        self._kv.wait_sync()
        self._kv.barrier()  # nobody is in another call any more, so none can wait for a key to come
        if self._leads_node:
            _core.freeze(self._core)
        try:
            self._make_visible()
            yield
        finally:
            if self._leads_node and not self._core.closed:
                _core.thaw(self._core)

    def _make_visible(self) -> None:
        self._kv.wait_sync()
        self._kv.barrier()
        self._kv.wait_sync()

    def _together(self, what: str, action: Callable[[], _T]) -> _T:
        """What `action` gives; if it fails for any worker, every one raises CheckpointError."""
        failure: CheckpointError | OSError | None = None
        try:
            result = action()
        except (CheckpointError, OSError) as error:
            failure = error
        failed_rank = self._kv.agree(failure is None)
        if isinstance(failure, CheckpointError):
            raise failure
        if failure is not None:
            reason = failure.strerror or str(failure)
            where = "" if failure.filename is None else f"{failure.filename}: "
            raise CheckpointError(f"rank {self._rank} could not {what}: {where}{reason}") from failure
        if failed_rank is not None:
            raise CheckpointError(f"rank {failed_rank} could not {what}: its own exception says why")
        return result

    # Writing

    def _write(self, directory: Path, arrays: dict[str, npt.NDArray[Any]], values: dict[str, Any]) -> None:
        previous = self._together("read the previous checkpoint", lambda: _manifest.read(directory))
        sequence = 1 if previous is None else previous.sequence + 1
        if self._leads_all:
            self._together("prepare the checkpoint", lambda: _prepare(directory, sequence))
        else:
            self._together("prepare the checkpoint", lambda: None)
        folder = self._together("find the checkpoint's folder", lambda: _find(directory, sequence))
        self._together("write the checkpoint", lambda: self._write_share(folder, arrays, values))
        if self._leads_all:
            self._together("complete the checkpoint", lambda: self._complete(folder, sequence))
            _clean(directory)
        else:
            self._together("complete the checkpoint", lambda: None)

    def _write_share(self, folder: Path, arrays: dict[str, npt.NDArray[Any]], values: dict[str, Any]) -> None:
        files = []
        if self._leads_node:
            for index, table in enumerate(self._tables):
                file = _contents.write_table(self._core, index, table, folder, self._rank)
                files += [] if file is None else [file]
        if arrays or values:
            files.append(_contents.write_extra(folder, self._rank, self._worker, arrays, values))
        share = {"clock": self._kv.current_clock, "files": [dataclasses.asdict(file) for file in files]}
        _write_json(folder / _share_name(self._rank, self._worker), share)
        _disk.sync_folder(folder)

    def _complete(self, folder: Path, sequence: int) -> None:
        files: list[File] = []
        clocks: list[list[int]] = []
        for rank in range(self._world_size):
            clocks.append([])
            for worker in range(self._workers):
                path = folder / _share_name(rank, worker)
                share = json.loads(path.read_bytes())
                clocks[rank].append(share["clock"])
                files += [File(**entry) for entry in share["files"]]
                _disk.remove_file(path)
        _disk.sync_folder(folder)
        manifest = Manifest(
            sequence=sequence,
            folder=folder.name,
            world_size=self._world_size,
            workers=self._workers,
            clocks=clocks,
            tables=self._entries(),
            files=files,
        )
        _manifest.write(folder.parent, manifest)

    def _entries(self) -> list[TableEntry]:
        return [
            _manifest.entry_of(
                table, _core.state_length(self._core, index), placed.learning_rate, placed.step
            )
            for index, (table, placed) in enumerate(zip(self._tables, self._core.tables(), strict=True))
        ]

    # Restoring

    def _suitable_manifest(self, directory: Path) -> Manifest:
        manifest = _manifest.read(directory)
        if manifest is None:
            raise CheckpointError(f"{directory} holds no complete checkpoint: there is no {_manifest.NAME}")
        _manifest.check_tables(manifest, directory / _manifest.NAME, self._entries())
        return manifest

    def _verify_share(self, folder: Path, files: Sequence[File]) -> None:
        if not self._leads_node:
            return
        entries = {entry.name: entry for entry in self._entries()}
        for file in files[self._rank :: self._world_size]:
            _contents.verify(folder, file, None if file.table is None else entries[file.table])

    def _load(self, folder: Path, manifest: Manifest) -> Restored:
        saved = {entry.name: entry for entry in manifest.tables}
        if self._leads_node:
            for index, (table, placed) in enumerate(zip(self._tables, self._core.tables(), strict=True)):
                files = [file for file in manifest.files if file.table == table.name]
                _contents.load_table(self._core, index, table, folder, files)
                entry = saved[table.name]
                placed.set_learning_rate(entry.learning_rate)
                moves_on = isinstance(table.optimizer, SGD) and table.optimizer.momentum
                if entry.step and not (moves_on and self._world_size > 1):
                    placed.set_step(entry.step)
        same = (manifest.world_size, manifest.workers) == (self._world_size, self._workers)
        place = (self._rank, self._worker) if same else (0, 0)
        clock = manifest.clocks[self._rank][self._worker] if same else max(map(max, manifest.clocks))
        self._kv.skip_to_clock(clock)
        extra: dict[str, Any] = {}
        for file in manifest.files:
            if file.table is None and (file.rank, file.worker) == place:
                extra = _contents.read_extra(folder / file.name)
        return Restored(extra, same, manifest.world_size * manifest.workers)


def _share_name(rank: int, worker: int) -> str:
    return f"share-rank-{rank:04d}-worker-{worker:04d}.json"


def _prepare(directory: Path, sequence: int) -> None:
    for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        _disk.make_folder(path)
        _disk.sync_folder(path.parent)
    _remove_leftovers(directory)
    _disk.make_folder(directory / f"{sequence:08d}-{secrets.token_hex(8)}")
    _disk.sync_folder(directory)


def _find(directory: Path, sequence: int) -> Path:
    """The folder that rank 0 has just made."""
    found = list(directory.glob(f"{sequence:08d}-*"))
    if len(found) != 1:
        raise CheckpointError(
            f"the folder that rank 0 made in {directory} is not there: the directory of a checkpoint has to "
            "be on a file system that all nodes share"
        )
    return found[0]


def _clean(directory: Path) -> None:
    """Remove what the manifest does not name; what is left by a failure to do so goes with the next one."""
    try:
        _remove_leftovers(directory)
    except OSError as error:
        _log.warning("leftovers of a checkpoint in %s could not be removed: %s", directory, error)


def _remove_leftovers(directory: Path) -> None:
    if not directory.is_dir():
        return
    manifest = _manifest.read(directory)
    kept = None if manifest is None else manifest.folder
    for path in directory.iterdir():
        if _manifest.is_folder_name(path.name) and path.name != kept:
            _disk.remove_folder(path)
    _disk.remove_file(directory / _manifest.TEMPORARY)


def _write_json(path: Path, content: Any) -> None:
    descriptor = _disk.create(path)
    try:
        with _disk.naming(path):
            _disk.write_at(descriptor, json.dumps(content).encode(), 0)
    finally:
        os.close(descriptor)
