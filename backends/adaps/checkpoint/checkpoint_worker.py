"""Collective calls of workers that write and restore a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from adaps import _core
from adaps.checkpoint import editions, manifests, node_files, table_files
from adaps.checkpoint.collective import Collective
from adaps.checkpoint.editions import Publisher
from adaps.checkpoint.manifests import CHECKPOINTS, CheckpointManifest, Edition, TableEntry
from adaps.checkpoint.table_match import check_tables, entry_of
from adaps.errors import CheckpointError
from adaps.tables import Table

__all__ = ["CheckpointWorker", "Restored"]

_MOST_TRIES = 20
"""Number of tries to read a checkpoint that another job may replace at the same time."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """A worker's own part of a restored checkpoint.

    Attributes
    ----------
    extra : dict
        Values that the worker with this index gave to `Node.checkpoint`. If another number of nodes or
        workers wrote the checkpoint, these are the values of the first worker of rank 0.
    same_workers : bool
        Whether the numbers of nodes and workers equal those of the checkpoint.
    shares : int
        Number of workers of all nodes that wrote the checkpoint.
    """

    extra: dict[str, Any]
    same_workers: bool
    shares: int


class CheckpointWorker:
    """One worker in the collective calls of `adaps.Node` that write and restore checkpoints.

    Parameters
    ----------
    core : adaps._core.Node
        Node of the worker.
    tables : sequence of Table
        Tables of the node.
    rank, world_size, workers, worker : int
        Rank of the node, number of nodes, number of workers per node, and index of this worker.
    life : str
        Identifier of 16 hexadecimal digits that only the connected nodes share.
    """

    def __init__(
        self,
        core: _core.Node,
        tables: Sequence[Table],
        rank: int,
        world_size: int,
        workers: int,
        worker: int,
        life: str,
    ) -> None:
        self._core = core
        self._tables = tables
        self._rank = rank
        self._world_size = world_size
        self._workers = workers
        self._worker = worker
        self._all = Collective(core, rank, worker)
        self._life = life
        self._count = 0  # number of checkpoints that all workers wrote together, or tried to
        self._publishers: dict[Path, Publisher[CheckpointManifest]] = {}

    def write(self, directory: Path, extra: Mapping[str, Any]) -> None:
        """Write the tables of all nodes, and `extra`, to `directory`; see `adaps.Node.checkpoint`."""
        arrays, values = table_files.split_extra(extra)
        with self._all.frozen():
            self._write(directory, arrays, values)

    def restore(self, directory: Path, check: Callable[[Restored], None] | None = None) -> Restored:
        """Read the tables of all nodes from `directory`, if `check` agrees; see `adaps.Node.restore`."""
        manifest, restored = self._verified(directory)
        self._all.run("use the checkpoint", lambda: None if check is None else check(restored))
        with self._all.frozen():
            loaded = self._all.run(
                "read the checkpoint", lambda: self._loaded(directory / manifest.folder, manifest)
            )
            self._all.run("overwrite all rows", lambda: self._take_over(loaded, manifest))
        self._all.make_visible()
        return restored

    def end(self) -> None:
        """Release the directories, so that other jobs can write there."""
        for publisher in self._publishers.values():
            publisher.end()

    # Writing

    def _write(self, directory: Path, arrays: dict[str, npt.NDArray[Any]], values: dict[str, Any]) -> None:
        self._count += 1
        # The name contains this start of the job: if the process is suspended here, no later start uses it.
        folder = directory / manifests.folder_name(self._count, self._life)
        may_be_published = False
        try:
            self._all.run("prepare the checkpoint", lambda: self._prepare(folder))
            self._all.run("find the checkpoint's folder", lambda: node_files.find(folder))
            self._all.run("write the checkpoint", lambda: self._write_files(folder, arrays, values))
            may_be_published = True
            self._all.run("complete the checkpoint", lambda: self._complete(folder))
        except CheckpointError:
            if self._all.is_primary:
                if not may_be_published:
                    node_files.remove(folder)
                self._publisher(directory).check()  # raises if another job has removed the files
            raise

    def _prepare(self, folder: Path) -> None:
        if self._all.is_primary:
            self._publisher(folder.parent).begin(folder)

    def _publisher(self, directory: Path) -> Publisher[CheckpointManifest]:
        if directory not in self._publishers:
            self._publishers[directory] = node_files.publisher_of(
                self._core, directory, self._life, CHECKPOINTS
            )
        return self._publishers[directory]

    def _write_files(self, folder: Path, arrays: dict[str, npt.NDArray[Any]], values: dict[str, Any]) -> None:
        files = []
        if self._all.is_node_primary:
            for index, (table, placed) in enumerate(zip(self._tables, self._core.tables(), strict=True)):
                placed.catch_up()  # A checkpoint lacks the hyperparameters of these steps.
                file = table_files.write_table(self._core, index, table, folder, self._rank)
                files += [] if file is None else [file]
        if arrays or values:
            files.append(table_files.write_extra(folder, self._rank, self._worker, arrays, values))
        node_files.write_list(folder, self._rank, self._worker, [self._all.kv.current_clock], files)

    def _complete(self, folder: Path) -> None:
        if not self._all.is_primary:
            return
        clocks, files = node_files.collect(folder, self._world_size, self._workers)
        manifest = CheckpointManifest(
            sequence=1,
            folder=folder.name,
            world_size=self._world_size,
            workers=self._workers,
            clocks=clocks,
            tables=self._entries(),
            files=files,
        )

        def follow(last: CheckpointManifest | None) -> CheckpointManifest:
            return manifest if last is None else dataclasses.replace(manifest, sequence=last.sequence + 1)

        self._publisher(folder.parent).publish(follow)

    def _entries(self) -> list[TableEntry]:
        return [
            entry_of(table, _core.state_length(self._core, index), placed.learning_rate, placed.step)
            for index, (table, placed) in enumerate(zip(self._tables, self._core.tables(), strict=True))
        ]

    # Restoring

    def _verified(self, directory: Path) -> tuple[CheckpointManifest, Restored]:
        """Return the checkpoint of a directory, equal for all workers and verified by every node."""
        for _ in range(_MOST_TRIES):
            edition = self._all.run("read the checkpoint", lambda: self._suitable(directory))
            # Numbers only rise. If each worker's edition is still the newest after all have read theirs, all
            # workers have read the same edition.
            if not self._is_newest(directory, edition):
                continue
            try:
                return self._verified_edition(directory, edition)
            except CheckpointError:
                if self._is_newest(directory, edition):
                    raise
                # A newer edition has replaced this one, and its files may be gone, so that one is tried next.
        raise CheckpointError(f"{directory} gets new checkpoints faster than one can be read")

    def _verified_edition(
        self, directory: Path, edition: Edition[CheckpointManifest]
    ) -> tuple[CheckpointManifest, Restored]:
        manifest = edition.content
        assert manifest is not None
        self._all.run(
            "verify the checkpoint", lambda: self._verify_files(directory / manifest.folder, manifest)
        )
        return manifest, self._all.run("read the checkpoint", lambda: self._kept(directory, manifest))

    def _is_newest(self, directory: Path, edition: Edition[CheckpointManifest]) -> bool:
        """Whether an edition is still the newest one, with one result for all workers."""
        found = self._all.run("read the checkpoint", lambda: editions.newest_number(directory))
        return self._all.all_agree(found == edition.number)

    def _suitable(self, directory: Path) -> Edition[CheckpointManifest]:
        edition = editions.newest(directory, CHECKPOINTS)
        if edition is None or edition.content is None:
            raise CheckpointError(
                f"{directory} holds no complete checkpoint, because it has no manifest: give a directory "
                "to which `checkpoint` has written; `adaps.checkpoint.exists` tests for one"
            )
        path = directory / editions.edition_name(edition.number)
        check_tables(edition.content, path, self._entries())
        return edition

    def _verify_files(self, folder: Path, manifest: CheckpointManifest) -> None:
        if not self._all.is_node_primary:
            return
        entries = {entry.name: entry for entry in self._entries()}
        for file in manifest.files[self._rank :: self._world_size]:
            table_files.verify(folder, file, None if file.table is None else entries[file.table])
        for table in self._tables[self._rank :: self._world_size]:
            table_files.verify_rows(
                folder, table, [file for file in manifest.files if file.table == table.name]
            )

    def _kept(self, directory: Path, manifest: CheckpointManifest) -> Restored:
        same = (manifest.world_size, manifest.workers) == (self._world_size, self._workers)
        place = (self._rank, self._worker) if same else (0, 0)
        extra: dict[str, Any] = {}
        for file in manifest.files:
            if file.table is None and (file.rank, file.worker) == place:
                extra = table_files.read_extra(directory / manifest.folder / file.name)
        return Restored(extra, same, manifest.world_size * manifest.workers)

    def _loaded(self, folder: Path, manifest: CheckpointManifest) -> list[_core.TableRestore]:
        """Read all files into memory. Nothing is changed yet, so errors have no effect."""
        if not self._all.is_node_primary:
            return []
        loaded = []
        for index, table in enumerate(self._tables):
            files = [file for file in manifest.files if file.table == table.name]
            loaded.append(table_files.load_table(self._core, index, table, folder, files))
        return loaded

    def _take_over(self, loaded: list[_core.TableRestore], manifest: CheckpointManifest) -> None:
        """Replace the contents of the node's tables by the loaded ones."""
        saved = {entry.name: entry for entry in manifest.tables}
        if self._all.is_node_primary:
            for table, placed, restore in zip(self._tables, self._core.tables(), loaded, strict=True):
                restore.finish()
                entry = saved[table.name]
                placed.set_learning_rate(entry.learning_rate)
                _number_steps(placed, entry.step)
        same = (manifest.world_size, manifest.workers) == (self._world_size, self._workers)
        clock = manifest.clocks[self._rank][self._worker] if same else max(map(max, manifest.clocks))
        self._all.kv.skip_to_clock(clock)


def _number_steps(table: _core.NodeTable, step: int) -> None:
    """Set a table's step. Rows catch up with the steps that they missed, unless the server cannot do this."""
    try:
        table.set_step(step)
    except ValueError:  # There are several nodes, or not all rows are in memory.
        table.set_step(step, idle_rows=False)
