"""The manifest of a checkpoint or of exports: its content, and the tables that it fits.

A manifest names the job that wrote it. It has no content before the job's first checkpoint or export. Version
1, which can still be read, always contains a checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from adaps import _core
from adaps.errors import CheckpointError

__all__ = [
    "CHECKPOINTS",
    "EXPORTS",
    "CheckpointManifest",
    "Content",
    "Edition",
    "ExportManifest",
    "ExportPart",
    "ExportedTable",
    "File",
    "ManifestKind",
    "TableEntry",
    "Writer",
    "decode",
    "encode",
    "folder_name",
    "is_folder_name",
]

FOLDER = r"^[0-9]{8,}-[0-9a-f]{16}$"


Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
# These have the limits of the server, so that a restore cannot fail after it has overwritten rows.
Clock = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Step = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Length = Annotated[int, msgspec.Meta(gt=0, le=_core.MAX_ROW_FLOATS)]


@dataclasses.dataclass(frozen=True)
class File:
    """A file with rows of a table, or with values that a worker added to a checkpoint."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+\.safetensors$")]
    bytes: Natural
    checksums: dict[str, Natural]
    rank: Natural
    table: str | None = None
    rows: Natural = 0
    worker: Natural | None = None
    deleted: Natural = 0


@dataclasses.dataclass(frozen=True)
class TableEntry:
    """A table at the time of a checkpoint."""

    name: str
    rows: Positive
    length: Length
    state_length: Natural
    optimizer: dict[str, Any]
    init: dict[str, Any]
    learning_rate: Annotated[float, msgspec.Meta(ge=0)]
    step: Step
    keys: str | None = None


@dataclasses.dataclass(frozen=True)
class CheckpointManifest:
    """A complete checkpoint.

    Attributes
    ----------
    sequence : int
        Number of the checkpoint in its directory, from 1.
    folder : str
        Folder of the files, within the directory.
    world_size, workers : int
        Number of nodes that wrote the checkpoint, and number of workers per node.
    clocks : list of list of int
        Clocks of the workers, for each node.
    """

    sequence: Positive
    folder: Annotated[str, msgspec.Meta(pattern=FOLDER)]
    world_size: Positive
    workers: Positive
    clocks: list[list[Clock]]
    tables: list[TableEntry]
    files: list[File]

    @property
    def folders(self) -> list[str]:
        """Folders of the checkpoint's files."""
        return [self.folder]

    def __post_init__(self) -> None:
        if len(self.clocks) != self.world_size or {len(one) for one in self.clocks} != {self.workers}:
            raise ValueError(f"it lacks the clocks of {self.world_size} nodes of {self.workers} workers")
        _check_names("files", [file.name for file in self.files])
        for file in self.files:
            of_worker = file.table is None
            if file.rank >= self.world_size or of_worker == (file.worker is None):
                raise ValueError(f"{file.name} belongs to no node or no worker of the job")
            if file.worker is not None and file.worker >= self.workers:
                raise ValueError(f"{file.name} is of worker {file.worker}, and there were {self.workers}")
        places = [(file.rank, file.worker) for file in self.files if file.table is None]
        if len(set(places)) < len(places):
            raise ValueError("a worker has two files")
        if not all(math.isfinite(table.learning_rate) for table in self.tables):
            raise ValueError("a learning rate is not finite")


def _check_names(things: str, names: Sequence[str], least: int = 0) -> None:
    if len(names) < least or len(set(names)) < len(names):
        raise ValueError(f"of its {len(names)} {things}, only {len(set(names))} have distinct names")


@dataclasses.dataclass(frozen=True)
class ExportedTable:
    """A table with exported rows."""

    name: str
    rows: Positive
    length: Length
    keys: str | None = None


@dataclasses.dataclass(frozen=True)
class ExportPart:
    """The files of one export: all rows, or the rows that changed after the previous part.

    Attributes
    ----------
    folder : str
        Folder of the files, within the directory.
    clocks : list of list of int
        Clocks of the workers when the rows were copied, for each node.
    """

    folder: Annotated[str, msgspec.Meta(pattern=FOLDER)]
    clocks: list[list[Clock]]
    files: list[File]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


@dataclasses.dataclass(frozen=True)
class ExportManifest:
    """The newest export of a directory.

    Attributes
    ----------
    sequence : int
        Number of the export in its directory, from 1.
    parts : list of ExportPart
        All rows, then changes, the oldest first. The value of a row is in the last part that contains it.
    """

    sequence: Positive
    tables: list[ExportedTable]
    parts: list[ExportPart]

    @property
    def folders(self) -> list[str]:
        """Folders of the export's files."""
        return [part.folder for part in self.parts]

    def __post_init__(self) -> None:
        _check_names("parts", self.folders, least=1)
        tables = [table.name for table in self.tables]
        _check_names("tables", tables)
        for part in self.parts:
            _check_names("files", [file.name for file in part.files])
            if strange := {str(file.table) for file in part.files if file.table not in tables}:
                raise ValueError(f"it lists rows of {min(strange)!r}, which is not one of its tables")


@dataclasses.dataclass(frozen=True)
class Writer:
    """The job that writes to a directory, from the start of its node to its end.

    Attributes
    ----------
    life : str
        Random hexadecimal digits that are different for each start of the job.
    process, host, since
        Process id, host name and start time of the job's rank 0.
    """

    life: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]
    process: Natural
    host: str
    since: str

    def __str__(self) -> str:
        return " ".join(f"process {self.process} on {self.host} (since {self.since})".split())


Content = TypeVar("Content", CheckpointManifest, ExportManifest)


@dataclasses.dataclass(frozen=True)
class ManifestKind(Generic[Content]):
    """Whether the manifests of a directory describe checkpoints or exports.

    Attributes
    ----------
    name : str
        Field of a manifest that contains the description.
    article : str
        Name with its article.
    formats : tuple of str
        Formats that can be read. The first one is written; it alone names the writer and allows a missing
        content.
    content : type
        Type of the description.
    """

    name: str
    article: str
    formats: tuple[str, ...]
    content: type[Content]


CHECKPOINTS = ManifestKind(
    "checkpoint",
    "a checkpoint",
    ("adaps checkpoint, version 2", "adaps checkpoint, version 1"),
    CheckpointManifest,
)
EXPORTS = ManifestKind("export", "an export", ("adaps export, version 1",), ExportManifest)


@dataclasses.dataclass(frozen=True)
class Edition(Generic[Content]):
    """A numbered manifest, which is valid from its publication until the next one is published.

    Attributes
    ----------
    number : int
        Number, starting with 1. A directory of version 1 has number 0.
    writer : Writer or None
        Job that published the edition; None in version 1.
    content : CheckpointManifest, ExportManifest or None
        Description of the checkpoint or export; None if there is none yet.
    """

    number: int
    writer: Writer | None
    content: Content | None


# Workers restore at the same time, in threads. msgspec analyzes a type when it is first used. Threads that do
# this concurrently crash the process, so these types are used here first, in a single thread.
msgspec.json.Decoder(CheckpointManifest)
msgspec.json.Decoder(ExportManifest)
msgspec.json.Decoder(Writer)


def folder_name(count: int, life: str) -> str:
    """Return the name of the folder of a job's checkpoint or export number `count`, from 1."""
    return f"{count:08d}-{life}"


def is_folder_name(name: str) -> bool:
    """Whether a name belongs to the folder of a checkpoint or export."""
    return re.match(FOLDER, name) is not None


def decode(path: Path, text: bytes, number: int, kind: ManifestKind[Content]) -> Edition[Content]:
    """Return the edition that a manifest describes.

    Raises
    ------
    CheckpointError
        If the manifest is damaged, or of another kind.
    """
    named = f"the manifest of {kind.article}"
    newest = kind.formats[0]
    try:
        raw = msgspec.json.decode(text)  # stricter than json: refuses NaN and text that cannot be encoded
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


def encode(writer: Writer, content: Content | None, kind: ManifestKind[Content]) -> bytes:
    """Return the text of a manifest."""
    body = {
        "writer": dataclasses.asdict(writer),
        kind.name: None if content is None else dataclasses.asdict(content),
    }
    checked = {"format": kind.formats[0], "crc32": zlib.crc32(_canonical(body)), **body}
    return json.dumps(checked, indent=1).encode()


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
