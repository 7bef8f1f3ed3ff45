"""The manifest of a checkpoint: what it consists of, and whether a node's tables are those that it holds.

Version 2 says who wrote it, and may tell of no checkpoint; version 1, which this version reads as well, holds
a checkpoint only.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from adaps import optimizers
from adaps.errors import CheckpointError
from adaps.tables import Table

__all__ = [
    "Edition",
    "File",
    "Manifest",
    "TableEntry",
    "Writer",
    "check_tables",
    "decode",
    "encode",
    "entry_of",
    "folder_name",
    "is_folder_name",
]

FORMAT_1, FORMAT = "adaps checkpoint, version 1", "adaps checkpoint, version 2"

FOLDER = r"^[0-9]{8,}-[0-9a-f]{16}$"


Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a checkpoint: rows of a table, or what a worker wanted to be kept."""

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
class Writer:
    """Who writes checkpoints to a directory: a job, from the start of its node to its end.

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


@dataclasses.dataclass(frozen=True)
class Edition:
    """What a directory is to hold, from the moment at which it is published until the next one is.

    Attributes
    ----------
    number : int
        From 1, each one more than the one before. A directory of version 1 has number 0.
    writer : Writer or None
        Who published it; None in version 1.
    checkpoint : Manifest or None
        None if there is no checkpoint yet.
    """

    number: int
    writer: Writer | None
    checkpoint: Manifest | None


@dataclasses.dataclass(frozen=True)
class _Version2:
    writer: Writer
    checkpoint: Manifest | None


# Workers restore at the same time, in threads. msgspec analyses a type when it is first used, and threads
# that do so at once crash the process; so these types are used here first, while there is one thread.
msgspec.json.Decoder(Manifest)
msgspec.json.Decoder(_Version2)


def folder_name(count: int, life: str) -> str:
    """The folder of the checkpoint that a life of a job writes as the so-manieth, from 1."""
    return f"{count:08d}-{life}"


def is_folder_name(name: str) -> bool:
    """Whether a folder of that name was made for a checkpoint."""
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


def decode(path: Path, text: bytes, number: int) -> Edition:
    """What a manifest says.

    Raises
    ------
    CheckpointError
        If it is damaged, or not a manifest.
    """
    try:
        raw = msgspec.json.decode(text)  # stricter than json: no NaN, no text that cannot be encoded
        checksum, version = raw["crc32"], raw["format"]
        body = {"checkpoint": raw["checkpoint"]}
        if version == FORMAT:
            body["writer"] = raw["writer"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged, or not the manifest of a checkpoint") from error
    if version not in (FORMAT, FORMAT_1):
        raise CheckpointError(
            f"{path} has the format {version!r}; this version reads {FORMAT!r} and {FORMAT_1!r}"
        )
    if zlib.crc32(_canonical(body if version == FORMAT else body["checkpoint"])) != checksum:
        raise CheckpointError(f"{path} is damaged: its checksum is not {checksum!r}")
    try:
        if version == FORMAT_1:
            return Edition(number, None, msgspec.convert(body["checkpoint"], Manifest))
        whole = msgspec.convert(body, _Version2)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} is not the manifest of a checkpoint: {error}") from error
    return Edition(number, whole.writer, whole.checkpoint)


def encode(writer: Writer, checkpoint: Manifest | None) -> bytes:
    """The text of a manifest."""
    body = dataclasses.asdict(_Version2(writer, checkpoint))
    return json.dumps({"format": FORMAT, "crc32": zlib.crc32(_canonical(body)), **body}, indent=1).encode()


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
