"""The manifest of a checkpoint or of exports: what it consists of, and whether a node's tables are its own.

It says who wrote it, and may tell of nothing yet. Version 1 of a checkpoint's, which this version reads as
well, holds a checkpoint only.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from adaps import optimizers
from adaps.errors import CheckpointError
from adaps.tables import Table

__all__ = [
    "CHECKPOINTS",
    "EXPORTS",
    "Content",
    "Edition",
    "Exported",
    "ExportedTable",
    "File",
    "Kind",
    "Manifest",
    "Part",
    "TableEntry",
    "Writer",
    "check_tables",
    "decode",
    "encode",
    "entry_of",
    "folder_name",
    "is_folder_name",
]

FOLDER = r"^[0-9]{8,}-[0-9a-f]{16}$"


Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]


@dataclasses.dataclass(frozen=True)
class File:
    """A file: rows of a table, or what a worker wanted to be kept with a checkpoint."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+\.safetensors$")]
    bytes: Natural
    checksums: dict[str, Natural]
    rank: Natural
    table: str | None = None
    rows: Natural = 0
    worker: Natural | None = None


@dataclasses.dataclass(frozen=True)
class TableEntry:
    """A table as it was."""

    name: str
    rows: Positive
    length: Positive
    state_length: Natural
    optimizer: dict[str, Any]
    init: dict[str, Any]
    learning_rate: Annotated[float, msgspec.Meta(ge=0)]
    step: Natural


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A complete checkpoint.

    Attributes
    ----------
    sequence : int
        Counts the checkpoints of a directory, from 1.
    folder : str
        Where its files are, within the directory.
    world_size, workers : int
        Nodes, and workers of each, that wrote it.
    clocks : list of list of int
        Of each node's workers.
    """

    sequence: Positive
    folder: Annotated[str, msgspec.Meta(pattern=FOLDER)]
    world_size: Positive
    workers: Positive
    clocks: list[list[Natural]]
    tables: list[TableEntry]
    files: list[File]

    @property
    def folders(self) -> list[str]:
        """What of the directory it needs."""
        return [self.folder]

    def __post_init__(self) -> None:
        if [len(clocks) for clocks in self.clocks] != [self.workers] * self.world_size:
            raise ValueError(f"there are no clocks of {self.world_size} nodes of {self.workers} workers")
        if len(names := {file.name for file in self.files}) < len(self.files):
            raise ValueError(f"of its {len(self.files)} files, only {len(names)} have names of their own")
        for file in self.files:
            of_worker = file.table is None
            if file.rank >= self.world_size or of_worker == (file.worker is None):
                raise ValueError(f"{file.name} is of no node, or of no worker, that wrote it")
            if file.worker is not None and file.worker >= self.workers:
                raise ValueError(f"{file.name} is of worker {file.worker}, and there were {self.workers}")
        places = [(file.rank, file.worker) for file in self.files if file.table is None]
        if len(set(places)) < len(places):
            raise ValueError("a worker has two files")
        if not all(math.isfinite(table.learning_rate) for table in self.tables):
            raise ValueError("a learning rate is not finite")


@dataclasses.dataclass(frozen=True)
class ExportedTable:
    """A table whose rows are exported."""

    name: str
    rows: Positive
    length: Positive


@dataclasses.dataclass(frozen=True)
class Part:
    """What one export wrote: all rows, or those that had changed since the part before.

    Attributes
    ----------
    folder : str
        Where its files are, within the directory.
    clocks : list of list of int
        Of each node's workers, at the cut.
    """

    folder: Annotated[str, msgspec.Meta(pattern=FOLDER)]
    clocks: list[list[Natural]]
    files: list[File]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)


@dataclasses.dataclass(frozen=True)
class Exported:
    """The newest export of a directory.

    Attributes
    ----------
    sequence : int
        Counts the exports of a directory, from 1.
    parts : list of Part
        All rows, and then changes, the oldest first: a row is as the last part has it that has it.
    """

    sequence: Positive
    tables: list[ExportedTable]
    parts: list[Part]

    @property
    def folders(self) -> list[str]:
        """What of the directory it needs."""
        return [part.folder for part in self.parts]

    def __post_init__(self) -> None:
        if not self.parts or len(set(self.folders)) < len(self.parts):
            raise ValueError(
                f"of its {len(self.parts)} parts, only {len(set(self.folders))} have own folders"
            )
        tables = {table.name for table in self.tables}
        if len(tables) < len(self.tables):
            raise ValueError(f"of its {len(self.tables)} tables, only {len(tables)} have names of their own")
        for part in self.parts:
            if len(names := {file.name for file in part.files}) < len(part.files):
                raise ValueError(f"of {len(part.files)} files, only {len(names)} have names of their own")
            if strange := {str(file.table) for file in part.files if file.table not in tables}:
                raise ValueError(f"it tells of rows of {min(strange)!r}, which is no table of it")


@dataclasses.dataclass(frozen=True)
class Writer:
    """Who writes to a directory: a job, from the start of its node to its end.

    Attributes
    ----------
    life : str
        Distinguishes it from all others, of the same process and of earlier starts of the job, too.
    process, host, since
        Where and when rank 0 of it was.
    """

    life: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]
    process: Natural
    host: str
    since: str

    def __str__(self) -> str:
        return " ".join(f"process {self.process} on {self.host} (since {self.since})".split())


Content = TypeVar("Content", Manifest, Exported)


@dataclasses.dataclass(frozen=True)
class Kind(Generic[Content]):
    """What the manifests of a directory tell of.

    Attributes
    ----------
    name : str
        Under which a manifest has it.
    article : str
        The name with its article.
    formats : tuple of str
        That can be read. The first one is written; it alone says who wrote it, and may tell of nothing yet.
    content : type
        That such a manifest holds.
    """

    name: str
    article: str
    formats: tuple[str, ...]
    content: type[Content]


CHECKPOINTS = Kind(
    "checkpoint",
    "a checkpoint",
    ("adaps checkpoint, version 2", "adaps checkpoint, version 1"),
    Manifest,
)
EXPORTS = Kind("export", "an export", ("adaps export, version 1",), Exported)


@dataclasses.dataclass(frozen=True)
class Edition(Generic[Content]):
    """What a directory is to hold, from the moment at which it is published until the next one is.

    Attributes
    ----------
    number : int
        From 1, each one more than the one before. A directory of version 1 has number 0.
    writer : Writer or None
        Who published it; None in version 1.
    content : Manifest, Exported or None
        None if there is none yet.
    """

    number: int
    writer: Writer | None
    content: Content | None


# Workers restore at the same time, in threads. msgspec analyses a type when it is first used, and threads
# that do so at once crash the process; so these types are used here first, while there is one thread.
msgspec.json.Decoder(Manifest)
msgspec.json.Decoder(Exported)
msgspec.json.Decoder(Writer)


def folder_name(count: int, life: str) -> str:
    """The folder of the checkpoint or export that a life of a job writes as the so-manieth, from 1."""
    return f"{count:08d}-{life}"


def is_folder_name(name: str) -> bool:
    """Whether a folder of that name was made for a checkpoint or export."""
    return re.match(FOLDER, name) is not None


def entry_of(table: Table, state_length: int, learning_rate: float, step: int) -> TableEntry:
    """A table of a node, as a manifest describes it."""
    return TableEntry(
        table.name,
        table.rows,
        table.length,
        state_length,
        _described(table.optimizer),
        _described(table.init),
        learning_rate,
        step,
    )


def check_tables(manifest: Manifest, path: Path, present: Sequence[TableEntry]) -> None:
    """Raise CheckpointError unless the checkpoint holds what the tables of a node need."""
    saved = {entry.name: entry for entry in manifest.tables}
    if superfluous := saved.keys() - {entry.name for entry in present}:
        raise CheckpointError(f"{path} has the table {min(superfluous)!r}, which this node does not have")
    written: dict[str | None, int] = {}
    for file in manifest.files:
        if file.table is not None and file.table not in saved:
            raise CheckpointError(f"{path} tells of rows of {file.table!r}, which is no table of it")
        written[file.table] = written.get(file.table, 0) + file.rows
    for entry in present:
        if entry.name not in saved:
            raise CheckpointError(f"{path} has no table {entry.name!r}; it has {', '.join(map(repr, saved))}")
        other = saved[entry.name]
        compared = ["rows", "length", "optimizer", "state_length"]
        if written.get(entry.name, 0) < entry.rows:
            compared.append("init")  # untouched rows are not in the checkpoint, so they start from it
        for what in compared:
            here, there = _without_rate(getattr(entry, what)), _without_rate(getattr(other, what))
            if what == "optimizer":
                there = _completed(there)
            if here != there:
                raise CheckpointError(
                    f"{path}: the table {entry.name!r} has {what} {_text(there)} in the checkpoint, "
                    f"but {_text(here)} on this node"
                )


def decode(path: Path, text: bytes, number: int, kind: Kind[Content]) -> Edition[Content]:
    """What a manifest says.

    Raises
    ------
    CheckpointError
        If it is damaged, or not a manifest of this kind.
    """
    named = f"the manifest of {kind.article}"
    newest = kind.formats[0]
    try:
        raw = msgspec.json.decode(text)  # stricter than json: no NaN, no text that cannot be encoded
        checksum, version = raw["crc32"], raw["format"]
        if version not in kind.formats:
            known = " and ".join(map(repr, kind.formats))
            raise CheckpointError(f"{path} has the format {version!r}; this version reads {known}")
        content = raw[kind.name]
        body = {kind.name: content, "writer": raw["writer"]} if version == newest else content
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged, or not {named}") from error
    if zlib.crc32(_canonical(body)) != checksum:
        raise CheckpointError(f"{path} is damaged: its checksum is not {checksum!r}")
    try:
        if version == newest:
            writer = msgspec.convert(raw["writer"], Writer)
            if content is None:
                return Edition(number, writer, None)
            return Edition(number, writer, msgspec.convert(content, kind.content))
        return Edition(number, None, msgspec.convert(content, kind.content))
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} is not {named}: {error}") from error


def encode(writer: Writer, content: Content | None, kind: Kind[Content]) -> bytes:
    """The text of a manifest."""
    body = {
        "writer": dataclasses.asdict(writer),
        kind.name: None if content is None else dataclasses.asdict(content),
    }
    checked = {"format": kind.formats[0], "crc32": zlib.crc32(_canonical(body)), **body}
    return json.dumps(checked, indent=1).encode()


def _described(value: Any) -> dict[str, Any]:
    # through JSON, so that it equals what is read from a manifest
    described: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value)))
    return {"kind": type(value).__name__, **described}


def _completed(described: dict[str, Any]) -> dict[str, Any]:
    """An optimizer with the defaults of hyperparameters that there were not yet when it was written."""
    kind = getattr(optimizers, str(described.get("kind")), None)
    if not dataclasses.is_dataclass(kind):
        return described
    defaults = {field.name: field.default for field in dataclasses.fields(kind) if field.name != "lr"}
    return {**defaults, **described}


def _without_rate(value: Any) -> Any:
    """An optimizer's learning rate may change, and is restored."""
    return {k: v for k, v in value.items() if k != "lr"} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    arguments = ", ".join(f"{name}={given}" for name, given in value.items() if name != "kind")
    return " ".join(f"{value.get('kind')}({arguments})".split())  # one line, whatever the manifest holds


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
