"""The collective call of workers that exports tables during training.

All workers wait while rows are copied, so that the copies are from one moment. Then a thread of each node
writes its copies and posts its outcome at the rendezvous store. The thread of rank 0 publishes the export and
posts that it did. Workers do not take part in that.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from adaps import _core
from adaps.checkpoint import editions, manifests, node_files, table_files
from adaps.checkpoint.collective import Collective, explained
from adaps.checkpoint.editions import Publisher
from adaps.checkpoint.export_reader import check_names, known_name
from adaps.checkpoint.manifests import EXPORTS, ExportedTable, ExportManifest, ExportPart
from adaps.errors import CheckpointError, RendezvousError
from adaps.tables import Table

if TYPE_CHECKING:
    from adaps.node import Node

__all__ = ["Export", "Exporter", "Exports"]

_POLL_SECONDS = 0.05
"""Seconds between two checks of other nodes' messages."""
_MOST_SECONDS = 60.0
"""Maximum time for an answer of the rendezvous store, in seconds."""

_T = TypeVar("_T")

_log = logging.getLogger("adaps")


class Export:
    """An export that is written during training; `adaps.Node.export` returns it.

    Parameters
    ----------
    directory : Path
        Directory of the export.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failure: BaseException | None = None
        self._ended = threading.Event()

    def __repr__(self) -> str:
        return f"<export to {self._directory}, {'ended' if self.done else 'being written'}>"

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Block until all nodes have written their rows and the directory contains the export.

        Raises
        ------
        CheckpointError
            On every node, if anything could not be written, for instance because the disk is full. The
            directory still contains the previous export, and the next export includes the missing changes.
        PeerLost
            If a node was lost before the export was complete.
        """
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # `wait` raises it again
            self._failure = error
        self._ended.set()


@dataclasses.dataclass
class _Target:
    """The changes that this node has to write to a directory, for some tables."""

    changed: dict[int, _core.ChangedRows]
    parts: list[ExportPart]
    """Parts that this job last published there, which the changes follow; only rank 0 lists them."""
    is_used: bool = False
    """Whether an export of these changes has succeeded."""


class Exports:
    """State of exports that the workers of one node share.

    Parameters
    ----------
    node : Node
        Node with the exported tables.
    core : adaps._core.Node
        Core of the node.
    tables : sequence of Table
        Tables of the node.
    life : str
        Identifier of 16 hexadecimal digits that only the connected nodes share.
    """

    def __init__(self, node: Node, core: _core.Node, tables: Sequence[Table], life: str) -> None:
        self.core = core
        self.tables = tables
        self.rank, self.world_size, self.workers = node.rank, node.world_size, node.workers
        self.life = life
        self.clocks = [0] * node.workers
        self.count = 0
        self.last: Export | None = None
        self.targets: dict[tuple[Path, tuple[int, ...]], _Target] = {}
        self.publishers: dict[Path, Publisher[ExportManifest]] = {}
        self._post, self._posted = node.post, node.posted

    def await_last(self) -> None:
        """Block until the thread of the last export has ended, successfully or not."""
        if self.last is not None:
            self.last._ended.wait()

    def end(self) -> None:
        """Release the directories, so that other jobs can write there."""
        for publisher in self.publishers.values():
            publisher.end()

    def publisher(self, directory: Path) -> Publisher[ExportManifest]:
        """Return this node's Publisher for a directory."""
        if directory not in self.publishers:
            self.publishers[directory] = node_files.publisher_of(self.core, directory, self.life, EXPORTS)
        return self.publishers[directory]

    def say(self, who: str, number: int, failure: str) -> None:
        """Post the failure of an export for all nodes, or an empty text if there was none."""
        text = f"{number} {failure}".encode(errors="backslashreplace").decode()  # paths may hold any bytes
        self._answer(lambda: self._post(f"export/{who}", text))

    def heard(self, who: str, number: int) -> str:
        """Block until `who` has posted the failure of an export; empty if there was none."""
        while True:
            said = self._answer(lambda: self._posted(f"export/{who}")) or ""
            about, _, failure = said.partition(" ")
            if about == str(number):
                return failure
            time.sleep(_POLL_SECONDS)

    def _answer(self, ask: Callable[[], _T]) -> _T:
        """Return the answer of the rendezvous store, which may be busy; PeerLost if a node is lost."""
        deadline = time.monotonic() + _MOST_SECONDS
        while True:
            self.core.check()
            try:
                return ask()
            except RuntimeError as error:  # the store's own, or ours
                # If the store has ended together with rank 0, the core will soon detect the loss.
                if time.monotonic() >= deadline:
                    raise RendezvousError(f"the rendezvous store does not answer: {error}") from error
            time.sleep(_POLL_SECONDS)


class Exporter:
    """One worker in the collective calls of `adaps.Node.export`.

    Parameters
    ----------
    node : Exports
        State that the workers of a node share.
    worker : int
        Index of the worker on its node.
    """

    def __init__(self, node: Exports, worker: int) -> None:
        self._node = node
        self._worker = worker
        self._all = Collective(node.core, node.rank, worker)

    def export(self, directory: Path, names: Sequence[str] | None) -> Export:
        """Copy the rows, and start to write them. The arguments are described in `adaps.Node.export`."""
        node = self._node
        chosen = _chosen(node.tables, names)
        if self._all.is_node_primary:
            node.await_last()
            node.count += 1
        self._all.kv.barrier()
        number = node.count
        folder = directory / manifests.folder_name(number, node.life)
        try:
            needs_all = self._all.run("prepare the export", lambda: self._prepare(folder, chosen))
            self._all.run("join the export of rank 0", lambda: self._join(folder, chosen))
            everything = not self._all.all_agree(not needs_all)
            with self._all.frozen():
                counts = self._all.run("copy the rows", lambda: self._copy(directory, chosen, everything))
        except BaseException:
            self._give_up(folder, chosen)
            raise
        export = node.last
        assert export is not None
        if self._all.is_node_primary:
            writing = _Writing(node, folder, number, chosen, counts, everything)
            try:
                threading.Thread(target=export._run, args=(writing.run,), name="adaps export").start()
            except RuntimeError:  # This process may not start more threads, and the other nodes wait.
                export._run(writing.run)
        return export

    def _prepare(self, folder: Path, chosen: tuple[int, ...]) -> bool:
        """Make the folder. Returns whether rank 0 needs all rows.

        It does if the directory does not contain this job's last export, because changes would have no base,
        and if the changes are as large as all rows.
        """
        node, directory = self._node, folder.parent
        node.clocks[self._worker] = self._all.kv.current_clock
        if self._all.is_node_primary and (directory, chosen) not in node.targets:
            changed = {index: _core.ChangedRows(node.core, index) for index in chosen}
            node.targets[directory, chosen] = _Target(changed, [])
        if not self._all.is_primary:
            return False
        parts = _parts_in(directory, exported_tables(node.tables, chosen))
        node.say("tables", node.count, self._names(chosen))
        node.publisher(directory).begin(folder)
        sizes = [part.bytes for part in parts]
        return not parts or parts != node.targets[directory, chosen].parts or sum(sizes[1:]) >= sizes[0]

    def _join(self, folder: Path, chosen: tuple[int, ...]) -> None:
        """Raise CheckpointError unless rank 0 exports the same tables to the same folder."""
        node_files.find(folder)
        first, own = self._node.heard("tables", self._node.count), self._names(chosen)
        if own != first:
            raise CheckpointError(f"rank 0 exports {first}, and this worker {own}: give all the same tables")

    def _names(self, chosen: tuple[int, ...]) -> str:
        return ", ".join(repr(self._node.tables[index].name) for index in chosen)

    def _copy(self, directory: Path, chosen: tuple[int, ...], everything: bool) -> dict[int, int]:
        node = self._node
        if not self._all.is_node_primary:
            return {}
        changed = node.targets[directory, chosen].changed
        for index, table in enumerate(node.core.tables()):
            if index in chosen:
                table.catch_up()  # readers of an export have no optimizer that could catch up
        counts = {index: changed[index].take(everything) for index in chosen}
        node.last = Export(directory)
        return counts

    def _give_up(self, folder: Path, chosen: tuple[int, ...]) -> None:
        node = self._node
        if self._all.is_node_primary:
            node.last = None
            if (target := node.targets.get((folder.parent, chosen))) is not None:
                _settle(target, told=False)
                if not target.is_used:  # Its numbers of versions take four bytes per row.
                    del node.targets[folder.parent, chosen]
        if self._all.is_primary:
            node_files.remove(folder)


class _Writing:
    """The work of a node's thread for one export."""

    def __init__(
        self,
        node: Exports,
        folder: Path,
        number: int,
        chosen: tuple[int, ...],
        counts: dict[int, int],
        everything: bool,
    ) -> None:
        self._node = node
        self._folder = folder
        self._number = number
        self._chosen = chosen
        self._counts = counts
        self._everything = everything
        self._target = node.targets[folder.parent, chosen]
        self._clocks = list(node.clocks)

    def run(self) -> None:
        """Write this node's rows. Returns when the export is published."""
        node, told = self._node, False
        try:
            failure = self._failure_of("write", self._write)
            node.say(str(node.rank), self._number, "" if failure is None else str(failure))
            if node.rank == 0:
                outcome = self._conclude()
                node.say("outcome", self._number, outcome)
                if outcome:
                    _log.warning("the export to %s was not completed: %s", self._folder.parent, outcome)
            else:
                outcome = node.heard("outcome", self._number)
            if failure is not None:
                raise failure
            if outcome:
                raise CheckpointError(outcome)
            told = True
        finally:
            _settle(self._target, told)

    def _conclude(self) -> str:
        """Publish the export, as rank 0, if all nodes have written. Returns the failure, or an empty text."""
        said = [self._node.heard(str(rank), self._number) for rank in range(self._node.world_size)]
        for failure in said:
            if failure:
                node_files.remove(self._folder)
                return failure
        failed = self._failure_of("complete", self._publish)
        return "" if failed is None else str(failed)

    def _failure_of(self, what: str, action: Callable[[], None]) -> CheckpointError | None:
        """Return the failure of an action, of any kind, because the other nodes wait for the outcome."""
        try:
            action()
        except Exception as error:
            return explained(self._node.rank, f"{what} the export", error)
        return None

    def _write(self) -> None:
        node = self._node
        files = []
        for index, count in self._counts.items():
            changed = self._target.changed[index]
            file = table_files.write_changed(
                changed, count, index, node.tables[index], self._folder, node.rank
            )
            files += [] if file is None else [file]
        node_files.write_list(self._folder, node.rank, 0, self._clocks, files)

    def _publish(self) -> None:
        node = self._node
        part = ExportPart(self._folder.name, *node_files.collect(self._folder, node.world_size, 1))
        tables = exported_tables(node.tables, self._chosen)
        if self._everything:
            for table in tables:
                if table.keys is not None:
                    continue
                rows = sum(file.rows for file in part.files if file.table == table.name)
                if rows != table.rows:
                    raise CheckpointError(
                        f"of the {table.rows} rows of table {table.name!r}, {rows} were exported: every node "
                        "has to export the same tables, and no worker may use its node meanwhile"
                    )
        parts = [part] if self._everything else [*self._target.parts, part]

        def follow(last: ExportManifest | None) -> ExportManifest:
            if not self._everything and (last is None or last.parts != self._target.parts):
                raise CheckpointError(
                    f"{self._folder.parent} was replaced while an export to it was written, and no longer "
                    "contains the export before: export again, which writes all rows"
                )
            return ExportManifest(1 if last is None else last.sequence + 1, tables, parts)

        node.publisher(self._folder.parent).publish(follow)
        self._target.parts = parts


def exported_tables(tables: Sequence[Table], chosen: Sequence[int]) -> list[ExportedTable]:
    """Return tables of a node as described in the manifest of an export."""
    return [ExportedTable(tables[i].name, tables[i].rows, tables[i].length, tables[i].keys) for i in chosen]


def _chosen(tables: Sequence[Table], names: Sequence[str] | None) -> tuple[int, ...]:
    known = {table.name: index for index, table in enumerate(tables)}
    if names is None:
        return tuple(known.values())
    check_names(names)
    return tuple(sorted({known[known_name(name, known)] for name in names}))


def _parts_in(directory: Path, tables: Sequence[ExportedTable]) -> list[ExportPart]:
    """Return the parts of a directory's export; CheckpointError if it is of other tables."""
    edition = editions.newest(directory, EXPORTS)
    if edition is None or edition.content is None:
        return []
    if edition.content.tables == list(tables):
        return edition.content.parts
    raise CheckpointError(
        f"{directory / editions.edition_name(edition.number)} is of an export of "
        f"{_text(edition.content.tables)}, and this one is of {_text(tables)}: give each its own directory"
    )


def _text(tables: Sequence[ExportedTable]) -> str:
    return ", ".join(f"{table.name!r} ({table.rows} rows of {table.length})" for table in tables)


def _settle(target: _Target, told: bool) -> None:
    target.is_used = target.is_used or told
    for changed in target.changed.values():
        changed.settle(told)
